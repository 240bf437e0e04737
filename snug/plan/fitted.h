// Note [Fitted to the allocator]
// What torch's CUDA allocator holds beside tensors depends on the order in which they come and go. So the
// allocations of an offer (step_allocations.h) go through a model of that allocator: two steps, the second of
// which begins with what the first left cached. A run that has not begun begins with nothing; one that is
// planned on its way begins with what lies where, for an optimizer's states lie where its first step left
// room. Offers are tried from the fastest on whose tensors fit, until one is found for which the allocator
// would not have to empty its cache under the budget's cap.
//
//   Decision decision = decide_within(planner, 12_GiB, {.memory_bytes = hardware.memory_bytes});
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "snug/base/export.h"
#include "snug/plan/planner.h"
#include "snug/trace/allocator_layout.h"

namespace snug::plan {

struct Reserved {
  std::uint64_t bytes = 0;         // by torch's allocator, with segments that grow
  std::uint64_t needed_limit = 0;  // with a lower cap it would empty its cache
};

struct Gpu {
  std::uint64_t memory_bytes = 0;  // by which torch's allocator takes addresses
  // What the allocator holds when the next step begins, as as_left_by() tells it; none: nothing.
  std::function<trace::AllocatorLayout(const StepModel&)> held;
};

// For a step under these choices.
SNUG_API Reserved reserved(const StepModel& model, std::span<const std::uint32_t> chosen, const Gpu& gpu);

// The planner's overhead is that of the decision afterwards. Without a GPU, which has no memory, there is no
// such allocator: planner.decide().
SNUG_API Decision decide_within(Planner& planner, std::uint64_t budget_bytes, const Gpu& gpu);

}  // namespace snug::plan
