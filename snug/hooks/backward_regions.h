// Finds the region of the node that autograd is running, and tells listeners when it changes. Internal to
// hooks.
#pragma once

#include <mutex>

#include "snug/hooks/region.h"

namespace snug::hooks {

// Note [Regions in the backward]
// Autograd stamps every node with the thread that made it and a number that grows with every node of that
// thread. A region's forward is therefore a range of numbers: each thread keeps the list of (first number,
// region) at every change of region. In the backward a RecordFunction callback sees each node just before it
// runs and looks it up. AccumulateGrad nodes carry no such number; they count where their parameter is bound,
// else where the gradient came from.

// The forward of this thread enters (or returns to) a region: nodes made from here on are of that region.
void begin_range(RegionId id);

// Of the stretch that is running in one backward; shared by all threads that run its nodes.
struct BackwardState {
  std::mutex mutex;
  RegionId region = 0;
  int depth = 0;  // backwards within backwards
};

// One call of Engine::execute: closes the last stretch and restores the current region, also when it throws.
class BackwardScope {
 public:
  BackwardScope();
  ~BackwardScope();
  BackwardScope(const BackwardScope&) = delete;  // it belongs to one call
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  RegionId outer_;
};

// The RecordFunction callback of this thread, counted: RegionListenerGuard turns it on and off.
void watch_nodes();
void unwatch_nodes();

void set_current_region(RegionId id) noexcept;

}  // namespace snug::hooks
