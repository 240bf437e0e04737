// The budget of a device: what counts against it, what holds it, and when that can no longer be promised. On
// the CPU the bytes of tensors count, and the tracker's allocator refuses more of them; on a GPU all that the
// process holds there counts, and torch's allocator is capped at what is left beside the rest.
//
//   Tracker tracker({.device = device, .budget_bytes = Budget::of_tracker(device, 12_GiB)});
//   Budget budget(device, 12_GiB, plan.predicted.outside_bytes);  // caps torch's allocator
//   budget.require(plan.predicted.peak_bytes);
//   step();
//   if (const std::string trouble = budget.recheck(); !trouble.empty()) say(trouble);
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "snug/base/export.h"
#include "snug/memory/process_memory.h"

namespace snug::memory {

class SNUG_API Budget {
 public:
  // `outside_bytes`: what will be held beside torch's allocator once everything is loaded, if that is more
  // than now. Throws Error if the budget is below that. A lower cap that is there stays; what the allocator
  // had cached is given back. Without a budget it takes what it might before.
  Budget(c10::Device device, std::optional<std::uint64_t> budget_bytes, std::uint64_t outside_bytes = 0);
  ~Budget();                       // the cap is what it was
  Budget(const Budget&) = delete;  // it is a stretch of time
  Budget& operator=(const Budget&) = delete;

  // The part that a tracker has to hold.
  static std::optional<std::uint64_t> of_tracker(c10::Device device,
                                                 std::optional<std::uint64_t> budget_bytes);

  // What counts against it, of a peak of tensors and what the process held then.
  std::uint64_t use(std::uint64_t tensor_bytes, const ProcessMemory& memory) const;
  // What it leaves for tensors beside what lies outside; without a budget more than there is.
  std::uint64_t room_for_tensors(const ProcessMemory& memory) const;

  // Throws RunError, which says how much there is, if other processes leave less than that for this one.
  void require(std::uint64_t process_bytes) const;

  // Between steps, once everything is loaded that the steps to come will load: what lies outside is what it
  // is now, and a little. Returns that.
  std::uint64_t settle_outside();

  // Between steps: measures the outside and caps again. Returns what a user should know, else nothing: that
  // the budget is passed, or that other processes hold what it still allows.
  std::string recheck();
  void drop_cache() const;  // what torch's allocator holds for nobody

 private:
  void cap();
  std::string check_outside(const ProcessMemory& memory);
  std::string check_others(const ProcessMemory& memory);

  const c10::Device device_;
  const std::optional<std::uint64_t> budget_;
  double share_before_ = 1;  // of the device, for torch's allocator
  std::uint64_t outside_bytes_;
  std::uint64_t said_missing_ = 0;  // of what other processes hold
};

// What other processes hold of a GPU, for messages: "; other processes hold 90.1 GiB of its 139.7 GiB".
// Empty if that is little, and on the CPU.
SNUG_API std::string what_others_hold(c10::Device device);

}  // namespace snug::memory
