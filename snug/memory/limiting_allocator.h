// Refuses what would take the live bytes above a limit, and says what was alive when upstream has no more.
// Counts for itself, so it needs no tracker beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "snug/memory/out_of_budget.h"
#include "snug/memory/resource.h"
#include "snug/trace/ledger.h"

namespace snug::memory {

// The counting alone.
class SNUG_API Limit {
 public:
  // `alive` is asked on refusal for what to put into the error, on any thread, also while its maker goes;
  // without it the error holds the total only.
  explicit Limit(std::uint64_t bytes, std::function<trace::Snapshot()> alive = {})
      : limit_(bytes), alive_(std::move(alive)) {}

  void take(std::uint64_t bytes);  // throws OutOfBudget
  void give_back(std::uint64_t bytes) noexcept { live_ -= bytes; }
  void count(std::uint64_t bytes) noexcept { live_ += bytes; }  // a block from elsewhere, given back here
  OutOfBudget device_is_full(std::uint64_t bytes);              // what to throw when upstream has no more
  std::uint64_t live_bytes() const { return live_; }
  bool has_refused() const { return has_refused_; }  // since that was forgotten
  void forget_refused() { has_refused_ = false; }

 private:
  Refusal refusal(std::uint64_t bytes, std::uint64_t live);

  const std::uint64_t limit_;
  const std::function<trace::Snapshot()> alive_;
  std::atomic<std::uint64_t> live_{0};
  std::atomic<bool> has_refused_{false};
};

class SNUG_API LimitingAllocator final : public Resource {
 public:
  LimitingAllocator(std::shared_ptr<Resource> upstream, std::uint64_t limit_bytes,
                    std::function<trace::Snapshot()> alive = {});

  void* allocate(std::size_t bytes) override;  // throws OutOfBudget
  void deallocate(void* address, std::size_t bytes) noexcept override;

  std::uint64_t live_bytes() const { return limit_.live_bytes(); }

 private:
  std::shared_ptr<Resource> upstream_;
  Limit limit_;
};

}  // namespace snug::memory
