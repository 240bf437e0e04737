#include "snug/memory/limiting_allocator.h"

namespace snug::memory {

void Limit::take(std::uint64_t bytes) {
  std::uint64_t before = live_;
  do {  // what is refused is never counted: another thread may be asking for what still fits
    if (before + bytes > limit_) throw OutOfBudget(refusal(bytes, before), limit_);
  } while (!live_.compare_exchange_weak(before, before + bytes));
}

OutOfBudget Limit::device_is_full(std::uint64_t bytes) {
  return {refusal(bytes, live_), std::nullopt};
}

Refusal Limit::refusal(std::uint64_t bytes, std::uint64_t live) {
  has_refused_ = true;
  return {bytes, alive_ ? alive_() : trace::Snapshot{.total = live}};
}

LimitingAllocator::LimitingAllocator(std::shared_ptr<Resource> upstream, std::uint64_t limit_bytes,
                                     std::function<trace::Snapshot()> alive)
    : upstream_(std::move(upstream)), limit_(limit_bytes, std::move(alive)) {}

void* LimitingAllocator::allocate(std::size_t bytes) {
  limit_.take(bytes);
  try {
    return upstream_->allocate(bytes);
  } catch (const OutOfBudget&) {
    limit_.give_back(bytes);
    throw;
  } catch (const c10::OutOfMemoryError&) {
    limit_.give_back(bytes);
    throw limit_.device_is_full(bytes);
  } catch (...) {
    limit_.give_back(bytes);
    throw;
  }
}

void LimitingAllocator::deallocate(void* address, std::size_t bytes) noexcept {
  limit_.give_back(bytes);
  upstream_->deallocate(address, bytes);
}

}  // namespace snug::memory
