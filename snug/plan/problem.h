// The planner's problem without the details: a chain of regions, one choice for each, one budget.
//
//   Outcome outcome = evaluate(problem, chosen);      // chosen[i]: which of problem.regions[i]'s choices
//
// The forward passes through the regions in order, the backward the other way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "snug/base/export.h"

namespace snug::plan {

// One way to run a region.
struct Choice {
  std::uint64_t kept_bytes = 0;       // on the device from the region's forward to its backward
  std::uint64_t offloaded_bytes = 0;  // on the host between the two
  std::uint64_t forward_bytes = 0;    // the highest in its forward, without what earlier regions left behind
  std::uint64_t backward_bytes = 0;  // the highest in its backward, likewise, with what is back from the host
  double forward_seconds = 0;
  double backward_seconds = 0;  // with what is run again
  double ranks_seconds = 0;     // of both, for what ranks do together beside it
  // What else is copied beside it, whatever is chosen: weights and gradients of its neighbours.
  std::uint64_t forward_in_bytes = 0, backward_in_bytes = 0, backward_out_bytes = 0;

  std::uint64_t own_bytes() const { return std::max(forward_bytes, backward_bytes); }
};

using Choices = std::vector<Choice>;

struct Problem {
  std::vector<std::shared_ptr<const Choices>> regions;  // in the order of the forward; identical ones share
  std::uint64_t floor_bytes = 0;                        // the highest of what no choice changes
  double fixed_seconds = 0;  // of what no choice changes: the optimizer, what lies between regions
  double passes = 1;         // forwards and backwards per step
  double to_host_rate = 0;   // bytes per second; nothing can be offloaded at 0
  double to_device_rate = 0;
  double both_ways_rate = 0;  // of both together, both at work; 0: they take turns
  double copy_slowdown = 0;   // the share by which computing is slower while something is copied
};

struct Outcome {
  std::uint64_t peak_bytes = 0;
  double seconds = 0;
};

// Note [One region's time for a copy]
// What a region offloads is sent during the forward of the next one, and is on the device until that ends; it
// comes back during the backward of the next one, and is on the device from its begin. Whichever takes
// longer, computing or copying, is how long it takes. See Note [One region ahead] in trace/moves.h.
SNUG_API Outcome evaluate(const Problem& problem, std::span<const std::uint32_t> chosen);

// Whether the two differ by a number of bytes that is the same in every region and choice, and in time that
// no choice changes.
bool is_shifted(const Problem& a, const Problem& b);

}  // namespace snug::plan
