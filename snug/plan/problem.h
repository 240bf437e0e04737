// The planner's problem without the details: a chain of regions, one choice for each, one budget.
//
//   Outcome outcome = evaluate(problem, chosen);      // chosen[i]: which of problem.regions[i]'s choices
//
// The forward passes through the regions in order, the backward the other way.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "snug/base/export.h"

namespace snug::plan {

// One way to run a region.
struct Choice {
  std::uint64_t kept_bytes = 0;       // on the device from the region's forward to its backward
  std::uint64_t offloaded_bytes = 0;  // away between the two
  std::uint64_t forward_bytes = 0;    // the highest in its forward, without what earlier regions left behind
  std::uint64_t backward_bytes = 0;   // the highest in its backward, likewise
  double forward_seconds = 0;
  double backward_seconds = 0;  // with what is run again
};

using Choices = std::vector<Choice>;

struct Problem {
  std::vector<std::shared_ptr<const Choices>> regions;  // in the order of the forward; identical ones share
  std::uint64_t floor_bytes = 0;                        // the highest of what no choice changes
  double fixed_seconds = 0;                             // the optimizer
  double passes = 1;                                    // forwards and backwards per step
  double to_host_rate = 0;                              // bytes per second; nothing can be offloaded at 0
  double to_device_rate = 0;
};

struct Outcome {
  std::uint64_t peak_bytes = 0;
  double seconds = 0;
};

// Note [Link queues]
// What a region offloads waits in a queue that drains at to_host_rate while later regions run forward; what
// waits is still on the device. In the backward, what region l-1 needs must be there when region l is done:
// `lead` is how much of that, beyond what the link brings during region l, must be there even earlier. Nobody
// ever waits for the link.
SNUG_API Outcome evaluate(const Problem& problem, std::span<const std::uint32_t> chosen);

}  // namespace snug::plan
