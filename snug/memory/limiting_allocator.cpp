#include "snug/memory/limiting_allocator.h"

namespace snug::memory {

LimitingAllocator::LimitingAllocator(std::shared_ptr<Resource> upstream, std::uint64_t limit_bytes,
                                     std::function<trace::Snapshot()> alive)
    : upstream_(std::move(upstream)), limit_(limit_bytes), alive_(std::move(alive)) {}

void* LimitingAllocator::allocate(std::size_t bytes) {
  const std::uint64_t before = live_.fetch_add(bytes);
  if (before + bytes > limit_) {
    live_ -= bytes;
    throw OutOfBudget(refusal(bytes, before), limit_);
  }
  try {
    return upstream_->allocate(bytes);
  } catch (const OutOfBudget&) {
    live_ -= bytes;
    throw;
  } catch (const c10::OutOfMemoryError&) {
    live_ -= bytes;
    throw OutOfBudget(refusal(bytes, before), std::nullopt);
  } catch (...) {
    live_ -= bytes;
    throw;
  }
}

Refusal LimitingAllocator::refusal(std::uint64_t bytes, std::uint64_t live) const {
  return {bytes, alive_ ? alive_() : trace::Snapshot{.total = live}};
}

void LimitingAllocator::deallocate(void* address, std::size_t bytes) noexcept {
  live_ -= bytes;
  upstream_->deallocate(address, bytes);
}

}  // namespace snug::memory
