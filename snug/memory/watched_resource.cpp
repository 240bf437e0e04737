#include "snug/memory/watched_resource.h"

#include <ranges>

namespace snug::memory {

void* WatchedResource::allocate(std::size_t bytes) {
  auto asked = watches_.rbegin();
  const auto undo = [&] {
    while (asked != watches_.rbegin()) (*--asked)->give_back(bytes);
  };
  void* address = nullptr;
  try {
    for (; asked != watches_.rend(); ++asked) (*asked)->take(bytes);
    address = source_->allocate(bytes);
  } catch (const OutOfBudget&) {
    undo();
    throw;
  } catch (const c10::OutOfMemoryError&) {
    undo();
    if (watches_.empty()) throw;
    throw watches_.back()->limit().device_is_full(bytes);
  } catch (...) {
    undo();
    throw;
  }
  for (const auto& watch : watches_) watch->on_alloc(address, bytes);
  return address;
}

// They hear first: once freed, another thread may get the same address.
void WatchedResource::deallocate(void* address, std::size_t bytes) noexcept {
  for (const auto& watch : watches_ | std::views::reverse) watch->on_free(address, bytes);
  source_->deallocate(address, bytes);
}

}  // namespace snug::memory
