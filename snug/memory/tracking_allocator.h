// Tells an observer of every allocation and free that passes through.
#pragma once

#include "snug/memory/resource.h"

namespace snug::memory {

// Called on the thread that allocates or frees, under no lock of ours; must not make tensors. Shared with the
// allocator, which lives as long as its last block: a thread may be in here while whoever installed it goes
// away.
class SNUG_API BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void on_alloc(void* address, std::size_t bytes) noexcept = 0;
  virtual void on_free(void* address, std::size_t bytes) noexcept = 0;
};

class SNUG_API TrackingAllocator final : public Resource {
 public:
  TrackingAllocator(std::shared_ptr<Resource> upstream, std::shared_ptr<BlockObserver> observer)
      : upstream_(std::move(upstream)), observer_(std::move(observer)) {}

  void* allocate(std::size_t bytes) override {
    void* address = upstream_->allocate(bytes);
    observer_->on_alloc(address, bytes);
    return address;
  }

  // The observer hears first: once freed, another thread may get the same address.
  void deallocate(void* address, std::size_t bytes) noexcept override {
    observer_->on_free(address, bytes);
    upstream_->deallocate(address, bytes);
  }

 private:
  std::shared_ptr<Resource> upstream_;
  std::shared_ptr<BlockObserver> observer_;
};

}  // namespace snug::memory
