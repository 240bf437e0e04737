// Tells an observer of every allocation and free that passes through.
#pragma once

#include <atomic>

#include "snug/memory/resource.h"

namespace snug::memory {

// Called on the thread that allocates or frees, under no lock of ours; must not make tensors.
class SNUG_API BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void on_alloc(void* address, std::size_t bytes) noexcept = 0;
  virtual void on_free(void* address, std::size_t bytes) noexcept = 0;
};

class SNUG_API TrackingAllocator final : public Resource {
 public:
  TrackingAllocator(std::shared_ptr<Resource> upstream, BlockObserver& observer)
      : upstream_(std::move(upstream)), observer_(&observer) {}

  void* allocate(std::size_t bytes) override {
    void* address = upstream_->allocate(bytes);
    if (auto* observer = observer_.load()) observer->on_alloc(address, bytes);
    return address;
  }

  // The observer hears first: once freed, another thread may get the same address.
  void deallocate(void* address, std::size_t bytes) noexcept override {
    if (auto* observer = observer_.load()) observer->on_free(address, bytes);
    upstream_->deallocate(address, bytes);
  }

  void forget_observer() { observer_ = nullptr; }  // blocks may outlive it

 private:
  std::shared_ptr<Resource> upstream_;
  std::atomic<BlockObserver*> observer_;
};

}  // namespace snug::memory
