// Holds this process to its share of a GPU, and notices when that can no longer be promised. On the CPU it
// does nothing: there the tracker holds the budget.
//
//   DeviceBudget budget(device, 12_GiB, plan.predicted.outside_bytes);  // caps torch's allocator
//   budget.require(plan.predicted.peak_bytes);
//   step();
//   if (const std::string trouble = budget.recheck(); !trouble.empty()) say(trouble);
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "snug/base/bytes.h"
#include "snug/base/export.h"
#include "snug/memory/process_memory.h"

namespace snug::memory {

// Context, cuBLAS, cuDNN and kernels are loaded as they are first used: 0.74 GiB on an H200 after a step of a
// Llama-like model.
inline constexpr std::uint64_t kUsualOutside = 922_MiB;
// A plan written by hand, and no plan, say nothing of it.
inline std::uint64_t outside_or_usual(std::uint64_t planned_bytes) {
  return planned_bytes > 0 ? planned_bytes : kUsualOutside;
}

class SNUG_API DeviceBudget {
 public:
  // `outside_bytes`: what will be held beside torch's allocator once everything is loaded. Throws Error if
  // the budget is below that. Without a budget the allocator may take the whole device.
  DeviceBudget(c10::Device device, std::optional<std::uint64_t> budget_bytes,
               std::uint64_t outside_bytes = kUsualOutside);
  ~DeviceBudget();                             // the allocator may take the whole device again
  DeviceBudget(const DeviceBudget&) = delete;  // it is a stretch of time
  DeviceBudget& operator=(const DeviceBudget&) = delete;

  // Throws RunError, which says how much there is, if other processes leave less than that for this one.
  void require(std::uint64_t process_bytes) const;

  // Between steps: measures the outside and caps anew. Returns what a user should know, else nothing: that
  // the budget is passed, or that other processes hold what it still allows.
  std::string recheck();

 private:
  void cap();
  std::string check_outside(const ProcessMemory& memory);
  std::string check_others(const ProcessMemory& memory);

  const c10::Device device_;
  const std::optional<std::uint64_t> budget_;
  std::uint64_t outside_bytes_;
  std::uint64_t said_missing_ = 0;  // of what other processes hold
};

// What other processes hold of a GPU, for messages: "; other processes hold 90.1 GiB of its 139.7 GiB".
// Empty if that is little, and on the CPU.
SNUG_API std::string what_others_hold(c10::Device device);

}  // namespace snug::memory
