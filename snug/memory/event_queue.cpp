#include "snug/memory/event_queue.h"

#include <algorithm>

namespace snug::memory {

void EventQueue::push_front(const std::vector<RawEvent>& events) {
  std::lock_guard lock(mutex_);
  events_.insert(events_.begin(), events.begin(), events.end());
}

bool EventQueue::set_bytes(void* address, std::uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  auto event = std::find_if(events_.rbegin(), events_.rend(), [&](const RawEvent& raw) {
    return raw.kind == trace::EventKind::Alloc && raw.address == address;
  });
  if (event == events_.rend()) return false;
  event->bytes = bytes;
  return true;
}

void EventQueue::take(std::vector<RawEvent>& into) {
  std::lock_guard lock(mutex_);
  events_.swap(into);
}

}  // namespace snug::memory
