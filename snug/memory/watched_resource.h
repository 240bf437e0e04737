// A source of bytes and those who watch it, who come and go. Internal to memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "snug/memory/limiting_allocator.h"
#include "snug/memory/tracking_allocator.h"

namespace snug::memory {

// Limits and observes until it is closed. From then on it lets everything pass: a thread may hold it still.
class Watch {
 public:
  Watch(std::uint64_t limit_bytes, std::function<trace::Snapshot()> alive,
        std::shared_ptr<BlockObserver> observer)
      : limit_(limit_bytes, std::move(alive)), observer_(std::move(observer)) {}

  void close() { closed_ = true; }
  Limit& limit() { return limit_; }

  void take(std::size_t bytes) {
    if (!closed_) limit_.take(bytes);
  }
  void give_back(std::size_t bytes) noexcept { limit_.give_back(bytes); }
  void on_alloc(void* address, std::size_t bytes) noexcept {
    if (!closed_) observer_->on_alloc(address, bytes);
  }
  void on_free(void* address, std::size_t bytes) noexcept {
    if (closed_) return;
    observer_->on_free(address, bytes);
    limit_.give_back(bytes);
  }

 private:
  Limit limit_;
  std::shared_ptr<BlockObserver> observer_;
  std::atomic<bool> closed_{false};
};

class WatchedResource final : public Resource {
 public:
  using Watches = std::vector<std::shared_ptr<Watch>>;  // the innermost last
  WatchedResource(std::shared_ptr<Resource> source, Watches watches)
      : source_(std::move(source)), watches_(std::move(watches)) {}

  void* allocate(std::size_t bytes) override;
  void deallocate(void* address, std::size_t bytes) noexcept override;

  const std::shared_ptr<Resource>& source() const { return source_; }
  const Watches& watches() const { return watches_; }

 private:
  const std::shared_ptr<Resource> source_;
  const Watches watches_;
};

}  // namespace snug::memory
