#include "snug/memory/budget.h"

#include <algorithm>
#include <limits>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/device.h"

namespace snug::memory {

namespace {

constexpr std::uint64_t kWorthSaying = 64_MiB;

std::uint64_t below(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

}  // namespace

Budget::Budget(c10::Device device, std::optional<std::uint64_t> budget_bytes, std::uint64_t outside_bytes)
    : device_(hooks::with_index(device)), budget_(budget_bytes), outside_bytes_(outside_bytes) {
  if (!device_.is_cuda() || !budget_) return;
  share_before_ = cuda_allocator_share(device_.index());
  outside_bytes_ = std::max(outside_bytes_, process_memory(device_).outside_bytes());
  cap();
  empty_cuda_cache();
}

Budget::~Budget() {
  if (!device_.is_cuda() || !budget_) return;
  try {
    cap_cuda_allocator(device_.index(), share_before_);
  } catch (const std::exception&) {  // the device failed, and whoever uses it next will say so
  }
}

void Budget::cap() {
  check(outside_bytes_ < *budget_, "the budget of ", format_bytes(*budget_),
        " is below what CUDA itself takes (", format_bytes(outside_bytes_), ")");
  constexpr std::uint64_t kRounding = 4_KiB;  // torch multiplies again; far below the pages it takes
  const double share = static_cast<double>(*budget_ - outside_bytes_ + kRounding) /
                       static_cast<double>(cuda_device(device_.index()).memory_bytes);
  cap_cuda_allocator(device_.index(), std::min(share, share_before_));
}

std::optional<std::uint64_t> Budget::of_tracker(c10::Device device,
                                                std::optional<std::uint64_t> budget_bytes) {
  return device.is_cuda() ? std::nullopt : budget_bytes;
}

std::uint64_t Budget::use(std::uint64_t tensor_bytes, const ProcessMemory& memory) const {
  return device_.is_cuda() ? memory.process_bytes : tensor_bytes;
}

std::uint64_t Budget::room_for_tensors(const ProcessMemory& memory) const {
  const std::uint64_t bytes = budget_.value_or(std::numeric_limits<std::int64_t>::max());
  return device_.is_cuda() ? below(bytes, memory.outside_bytes()) : bytes;
}

void Budget::require(std::uint64_t process_bytes) const {
  if (!device_.is_cuda()) return;
  const CudaDevice device = cuda_device(device_.index());
  const std::uint64_t there = device.free_bytes + process_memory(device_).process_bytes;
  if (process_bytes <= there) return;
  throw RunError(concat("this step needs ", format_bytes(process_bytes), " of ", device.name, ", where ",
                        format_bytes(there), " of ", format_bytes(device.memory_bytes), " are left",
                        what_others_hold(device_), ": give a `budget` of at most ", format_bytes(there),
                        ", or another `device`"));
}

std::uint64_t Budget::settle_outside() {
  constexpr std::uint64_t kLater = 4_MiB;
  if (!device_.is_cuda() || !budget_) return 0;
  outside_bytes_ = process_memory(device_).outside_bytes() + kLater;
  cap();
  return outside_bytes_;
}

void Budget::drop_cache() const {
  if (device_.is_cuda()) empty_cuda_cache();
}

std::string Budget::recheck() {
  if (!device_.is_cuda() || !budget_) return "";
  const ProcessMemory memory = process_memory(device_);
  const std::string outside = check_outside(memory);
  return outside.empty() ? check_others(memory) : outside;
}

std::string Budget::check_outside(const ProcessMemory& memory) {
  const std::uint64_t outside = memory.outside_bytes();
  if (outside <= outside_bytes_) return "";
  const std::uint64_t more = outside - outside_bytes_;
  outside_bytes_ = outside;
  cap();
  if (memory.process_bytes <= *budget_) return "";
  empty_cuda_cache();
  return concat("the process holds ", format_bytes(memory.process_bytes), " of a budget of ",
                format_bytes(*budget_), ": beside torch's allocator ", format_bytes(outside), ", ",
                format_bytes(more), " more than expected (", memory.source,
                "). The allocator's cache was emptied, and from now on it gets that much less");
}

std::string Budget::check_others(const ProcessMemory& memory) {
  const std::uint64_t allowed = below(*budget_, memory.process_bytes);
  const std::uint64_t free = cuda_device(device_.index()).free_bytes;
  const std::uint64_t missing = below(allowed, free);
  if (missing < said_missing_ + kWorthSaying) return "";
  said_missing_ = missing;
  return concat(format_bytes(free), " of the device are free", what_others_hold(device_), ": ",
                format_bytes(missing), " of the ", format_bytes(allowed),
                " that the budget still allows are gone");
}

std::string what_others_hold(c10::Device device) {
  if (!device.is_cuda()) return "";
  const CudaDevice memory = cuda_device(hooks::with_index(device).index());
  const std::uint64_t used = below(memory.memory_bytes, memory.free_bytes);
  const std::uint64_t others = below(used, process_memory(device).process_bytes);
  if (others < kWorthSaying) return "";
  return concat("; other processes hold ", format_bytes(others), " of its ",
                format_bytes(memory.memory_bytes));
}

}  // namespace snug::memory
