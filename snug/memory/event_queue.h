// What the instruments saw, in the order it happened, not yet accounted for. Internal to memory.
#pragma once

#include <ATen/core/operator_name.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "snug/hooks/region.h"
#include "snug/trace/event.h"

namespace snug::memory {

struct RawEvent {
  trace::EventKind kind;
  trace::Category category = trace::Category::Other;
  hooks::RegionId region = 0;
  void* address = nullptr;  // the block, by the context pointer of its storage
  std::uint64_t bytes = 0;
  const c10::OperatorName* op = nullptr;  // Op: stable as long as the operator is registered
  trace::NameId name = 0;                 // Mark
  bool refused = false;                   // Mark: the allocator could not give `bytes`
  std::int64_t time_ns = 0;
};

// Append-only behind a lock that nothing else is taken under, so that it may be filled inside the lock of an
// allocator.
class EventQueue {
 public:
  // Returns how many events are waiting.
  std::size_t push(RawEvent event) noexcept {
    std::lock_guard lock(mutex_);
    event.time_ns = now();  // under the lock: times never decrease along the queue
    events_.push_back(event);
    return events_.size();
  }

  // What was there before the queue was: goes in front of all that was pushed, at time 0.
  void push_front(const std::vector<RawEvent>& events);

  // Changes the size of the latest Alloc of `address`, which the allocator told only afterwards. False if no
  // such event is waiting.
  bool set_bytes(void* address, std::uint64_t bytes) noexcept;

  void take(std::vector<RawEvent>& into);  // swaps: `into` must be empty, its capacity is used again

 private:
  std::int64_t now() const { return (std::chrono::steady_clock::now() - start_).count(); }

  mutable std::mutex mutex_;
  std::vector<RawEvent> events_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace snug::memory
