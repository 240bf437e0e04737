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

class SNUG_API LimitingAllocator final : public Resource {
 public:
  // `alive` is asked on refusal for what to put into the error; without it the error holds the total only.
  LimitingAllocator(std::shared_ptr<Resource> upstream, std::uint64_t limit_bytes,
                    std::function<trace::Snapshot()> alive = {});

  void* allocate(std::size_t bytes) override;  // throws OutOfBudget
  void deallocate(void* address, std::size_t bytes) noexcept override;

  std::uint64_t live_bytes() const { return live_; }
  void count(std::uint64_t bytes) {
    live_ += bytes;
  }  // a block taken over from elsewhere, now freed through here

 private:
  Refusal refusal(std::uint64_t bytes, std::uint64_t live) const;

  std::shared_ptr<Resource> upstream_;
  std::uint64_t limit_;
  std::function<trace::Snapshot()> alive_;
  std::atomic<std::uint64_t> live_{0};
};

}  // namespace snug::memory
