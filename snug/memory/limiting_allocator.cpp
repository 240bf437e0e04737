#include "snug/memory/limiting_allocator.h"

#include "snug/memory/out_of_budget.h"

namespace snug::memory {

LimitingAllocator::LimitingAllocator(std::shared_ptr<Resource> upstream, std::uint64_t limit_bytes,
                                     std::function<trace::Snapshot()> alive)
    : upstream_(std::move(upstream)), limit_(limit_bytes), alive_(std::move(alive)) {}

void* LimitingAllocator::allocate(std::size_t bytes) {
  const std::uint64_t before = live_.fetch_add(bytes);
  if (before + bytes > limit_) {
    live_ -= bytes;
    throw OutOfBudget(bytes, limit_, alive_ ? alive_() : trace::Snapshot{.total = before});
  }
  try {
    return upstream_->allocate(bytes);
  } catch (...) {
    live_ -= bytes;
    throw;
  }
}

void LimitingAllocator::deallocate(void* address, std::size_t bytes) noexcept {
  live_ -= bytes;
  upstream_->deallocate(address, bytes);
}

}  // namespace snug::memory
