// Tells listeners as backwards pass through regions, and where this thread is. Internal to hooks.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::hooks {

// Note [Stretches]
// A backward is one graph task of autograd's, whichever engine runs it. Each of its threads is in at most one
// stretch: nodes of one region, one after the other. A backward within a node of another lies within that
// node's stretch. When the graph task is done, a callback of its own ends what is open. After an exception
// there is no callback: what is left is ended when this thread runs a node of another backward, or when a
// forward begins a region.

// Note [Failures in the backward]
// torch catches whatever a RecordFunction callback throws, and goes on. So what a listener throws there is
// kept, and thrown once at the next place of that backward that may throw: an operator, the unpack of a saved
// tensor, the end of the graph task. Until then that listener hears of nothing new.

// What one listener was told of backwards that are not over. Nobody holds the lock while it is told.
struct BackwardState {
  struct Stretch {
    std::thread::id thread;
    RegionId region;  // 0: in none
  };
  struct Backward {
    std::vector<Stretch> stretches;
    std::exception_ptr failure;  // to be thrown
    bool has_failed = false;
  };
  std::mutex mutex;
  std::map<std::int64_t, Backward> backwards;  // by the number of their graph task
};

// Where this thread's current region is noted: with a backward that it is in, or (-1) with its forward.
std::int64_t current_place() noexcept;
void set_region(std::int64_t place, RegionId id) noexcept;  // nothing if that backward is over

// Ends stretches that backwards left when they threw, unless this thread is in a backward.
void end_left_overs();

// Throws what a listener threw in the backward that this thread is in.
void throw_failure();

// The RecordFunction callback of this thread, counted: RegionListenerGuard turns it on and off.
void watch_nodes();
void unwatch_nodes();

}  // namespace snug::hooks
