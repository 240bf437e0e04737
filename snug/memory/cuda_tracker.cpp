#include "snug/memory/cuda_tracker.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>

#include "snug/base/error.h"
#include "snug/memory/cuda_layout.h"
#include "snug/memory/cuda_stats.h"
#include "snug/memory/recognise.h"

namespace snug::memory {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;
using trace::Category;
using trace::EventKind;

namespace {

class AllocatorListener;

// Torch's callbacks cannot be detached, so they are the same for ever and look here for whoever is watching.
// Locked inside the allocator's lock, so nothing is asked of the allocator under it elsewhere.
struct Slot {
  std::mutex mutex;
  AllocatorListener* watch = nullptr;
};
Slot& slot() {
  static Slot& only = *std::make_unique<Slot>().release();  // the allocator outlives static objects
  return only;
}

// Note [Sizes of CUDA blocks]
// A trace entry holds the bytes asked for; the account needs those of the block, which are rounded up and,
// where a remainder was too small to split, larger still. The allocator adds a block to its statistics right
// after it told of the allocation, and takes it off `active_bytes` only after it told of the free. So the
// growth of active_bytes from one entry to the next is the size of the block allocated in between. The
// allocator's mutex is recursive: asking for statistics inside the callback is allowed.
class AllocatorListener final : public CudaTracker {
 public:
  AllocatorListener(EventQueue& queue, c10::DeviceIndex device)
      : queue_(queue), device_(device), place_(*this) {
    queue_live_blocks();
  }

  void take(std::vector<RawEvent>& into) override {
    for (;;) {
      std::uint64_t entry = 0;
      {
        std::lock_guard lock(slot().mutex);
        if (!pending_) return queue_.take(into);
        entry = entries_;
      }
      const std::uint64_t now = active_bytes();
      std::lock_guard lock(slot().mutex);
      if (entry != entries_) continue;  // another thread was here in between; `now` is of no use
      resolve(now);
      return queue_.take(into);
    }
  }

  std::uint64_t allocated_bytes() const override {
    return current_bytes(allocator::getDeviceStats(device_).allocated_bytes);
  }

  trace::AllocatorLayout layout() const override { return cuda_layout(device_); }

 private:
  struct Place {
    explicit Place(AllocatorListener& watch) {
      attach_callbacks();
      std::lock_guard lock(slot().mutex);
      check(!slot().watch, "another tracker is watching CUDA memory: one at a time");
      slot().watch = &watch;
    }
    ~Place() {
      std::lock_guard lock(slot().mutex);
      slot().watch = nullptr;
    }
    Place(const Place&) = delete;  // there is one slot
    Place& operator=(const Place&) = delete;
  };

  static void attach_callbacks() {
    at::globalContext().lazyInitDevice(at::kCUDA);
    static std::once_flag once;
    std::call_once(once, [] {
      allocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
        std::lock_guard lock(slot().mutex);
        if (slot().watch) slot().watch->on_entry(entry);
      });
      allocator::attachOutOfMemoryObserver(
          [](std::int64_t device, std::size_t bytes, std::size_t, std::size_t) {
            std::lock_guard lock(slot().mutex);
            if (slot().watch && slot().watch->device_ == device) slot().watch->on_refusal(bytes);
          });
    });
  }

  // The allocator tells of the snapshot inside the lock that it takes it under: what was told before is in
  // it, what is told after comes after it.
  void queue_live_blocks() {
    const auto snapshot = allocator::snapshot({0, 0}, /*include_traces=*/false);
    std::vector<RawEvent> live;
    for (const auto& segment : snapshot.segments) {
      if (segment.device != device_) continue;
      auto address = reinterpret_cast<std::uintptr_t>(segment.address);
      for (const auto& block : segment.blocks) {
        if (block.allocated)
          live.push_back(
              {.kind = EventKind::Alloc, .address = reinterpret_cast<void*>(address), .bytes = block.size});
        address += block.size;
      }
    }
    std::lock_guard lock(slot().mutex);
    ensure(seen_snapshot_, "torch's allocator took a snapshot without telling of it");
    queue_.push_front(live);
  }

  // Under the allocator's lock and the slot's: no tensors, no waiting.
  void on_entry(const TraceEntry& entry) {
    if (entry.device_ != device_) return;
    seen_snapshot_ |= entry.action_ == TraceEntry::SNAPSHOT;
    if (!seen_snapshot_) return;
    ++entries_;
    const bool allocates = entry.action_ == TraceEntry::ALLOC;
    if (!allocates && !pending_ && entry.action_ != TraceEntry::FREE_REQUESTED) return;
    const std::uint64_t now = allocates || pending_ ? active_bytes() : 0;
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

  void on_refusal(std::uint64_t bytes) {
    queue_.push(
        {.kind = EventKind::Mark, .region = hooks::current_region(), .bytes = bytes, .refused = true});
  }

  void resolve(std::uint64_t active_now) {
    if (!pending_) return;
    ensure(queue_.set_bytes(pending_, active_now - active_before_),
           "a block left the queue without its size");
    pending_ = nullptr;
  }

  std::uint64_t active_bytes() const {
    return current_bytes(allocator::getDeviceStats(device_).active_bytes);
  }

  EventQueue& queue_;
  const c10::DeviceIndex device_;
  // Under the slot's lock:
  bool seen_snapshot_ = false;
  std::uint64_t entries_ = 0;
  void* pending_ = nullptr;
  std::uint64_t active_before_ = 0;
  Place place_;  // the last: what the callbacks use is there before them and after them
};

}  // namespace

std::unique_ptr<CudaTracker> CudaTracker::attach(EventQueue& queue, c10::DeviceIndex device) {
  return std::make_unique<AllocatorListener>(queue, device);
}

}  // namespace snug::memory
