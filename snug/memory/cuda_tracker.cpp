#include "snug/memory/cuda_tracker.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <mutex>

#include "snug/base/error.h"
#include "snug/memory/recognise.h"

namespace snug::memory {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;
using trace::Category;
using trace::EventKind;

namespace {

class Watch;
std::atomic<Watch*> active{nullptr};

std::uint64_t bytes_of(const c10::CachingAllocator::StatArray& stat) {
  return static_cast<std::uint64_t>(
      stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

// Note [Sizes of CUDA blocks]
// A trace entry holds the bytes asked for; the account needs those of the block, which are rounded up and,
// where a remainder was too small to split, larger still. The allocator adds a block to its statistics right
// after it told of the allocation, and takes it off `active_bytes` only after it told of the free. So the
// growth of active_bytes from one entry to the next is the size of the block allocated in between. The
// allocator's mutex is recursive: asking for statistics inside the callback is allowed.
class Watch final : public CudaTracker {
 public:
  Watch(EventQueue& queue, c10::DeviceIndex device, std::function<void(std::uint64_t)> refused)
      : queue_(queue), device_(device), refused_(std::move(refused)) {
    attach_callback();
    check(!active, "another tracker is watching CUDA memory: one at a time");
    queue_live_blocks();
    active = this;
  }
  ~Watch() override { active = nullptr; }

  void settle() override {
    std::uint64_t entry = 0;
    {
      std::lock_guard lock(mutex_);
      if (!pending_) return;
      entry = entries_;
    }
    // Not under our lock: the callback takes it inside the allocator's.
    const std::uint64_t now = bytes_of(allocator::getDeviceStats(device_).active_bytes);
    std::lock_guard lock(mutex_);
    if (entry == entries_) resolve(now);  // else a later entry has done it
  }

  std::uint64_t allocated_bytes() const override {
    return bytes_of(allocator::getDeviceStats(device_).allocated_bytes);
  }

 private:
  // There is no way to detach, so the callback is the same for ever and looks for whoever is active.
  void attach_callback() {
    at::globalContext().lazyInitDevice(at::kCUDA);
    static std::once_flag once;
    std::call_once(once, [] {
      allocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
        if (Watch* watch = active) watch->on_entry(entry);
      });
      allocator::attachOutOfMemoryObserver(
          [](std::int64_t device, std::size_t bytes, std::size_t, std::size_t) {
            if (Watch* watch = active; watch && watch->device_ == device) watch->refused_(bytes);
          });
    });
  }

  void queue_live_blocks() {
    for (const auto& segment : allocator::snapshot({0, 0}, /*include_traces=*/false).segments) {
      if (segment.device != device_) continue;
      auto address = reinterpret_cast<std::uintptr_t>(segment.address);
      for (const auto& block : segment.blocks) {
        if (block.allocated)
          queue_.push(
              {.kind = EventKind::Alloc, .address = reinterpret_cast<void*>(address), .bytes = block.size});
        address += block.size;
      }
    }
  }

  // Under the allocator's lock: no tensors, no waiting.
  void on_entry(const TraceEntry& entry) {
    if (entry.device_ != device_) return;
    std::lock_guard lock(mutex_);
    ++entries_;
    const bool allocates = entry.action_ == TraceEntry::ALLOC;
    if (!allocates && !pending_ && entry.action_ != TraceEntry::FREE_REQUESTED) return;
    const std::uint64_t now =
        allocates || pending_ ? bytes_of(allocator::getDeviceStats(device_).active_bytes) : 0;
    resolve(now);
    void* address = reinterpret_cast<void*>(entry.addr_);
    if (allocates) {
      pending_ = address;
      active_before_ = now;
      queue_.push({.kind = EventKind::Alloc,
                   .category = in_operator() ? Category::Temporary : Category::Other,
                   .region = hooks::current_region(),
                   .address = address,
                   .bytes = entry.size_});
    } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
      queue_.push({.kind = EventKind::Free, .region = hooks::current_region(), .address = address});
    }
  }

  void resolve(std::uint64_t active_now) {
    if (!pending_) return;
    queue_.set_bytes(pending_, active_now - active_before_);
    pending_ = nullptr;
  }

  EventQueue& queue_;
  c10::DeviceIndex device_;
  std::function<void(std::uint64_t)> refused_;
  std::mutex mutex_;
  std::uint64_t entries_ = 0;
  void* pending_ = nullptr;
  std::uint64_t active_before_ = 0;
};

}  // namespace

std::unique_ptr<CudaTracker> CudaTracker::attach(EventQueue& queue, c10::DeviceIndex device,
                                                 std::function<void(std::uint64_t)> refused) {
  return std::make_unique<Watch>(queue, device, std::move(refused));
}

}  // namespace snug::memory
