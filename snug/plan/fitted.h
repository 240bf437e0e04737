// Note [Fitted to the allocator]
// What torch's CUDA allocator holds beside tensors depends on the order in which they come and go. So the
// allocations of an offer (step_allocations.h) go through a model of that allocator: two steps, the second of
// which begins with what the first left cached. Offers are tried from the fastest on whose tensors fit, until
// one is found for which the allocator would not have to empty its cache under the budget's cap.
//
//   Decision decision = decide_within(planner, 12_GiB, hardware.memory_bytes);
#pragma once

#include <cstdint>
#include <span>

#include "snug/base/export.h"
#include "snug/plan/planner.h"

namespace snug::plan {

struct Reserved {
  std::uint64_t bytes = 0;         // by torch's allocator, with segments that grow
  std::uint64_t needed_limit = 0;  // with a lower cap it would empty its cache
};

// For a step under these choices. `device_bytes`: the GPU's memory, by which torch's allocator takes
// addresses.
SNUG_API Reserved reserved(const StepModel& model, std::span<const std::uint32_t> chosen,
                           std::uint64_t device_bytes);

// The planner's overhead is that of the decision afterwards. `device_bytes` 0: on the CPU, where there is no
// such allocator, it is planner.decide().
SNUG_API Decision decide_within(Planner& planner, std::uint64_t budget_bytes, std::uint64_t device_bytes);

}  // namespace snug::plan
