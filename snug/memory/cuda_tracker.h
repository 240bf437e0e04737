// Watches torch's CUDA caching allocator. Internal to memory. cuda_tracker.cpp, or no_cuda_tracker.cpp in a
// CPU build.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "snug/memory/event_queue.h"

namespace snug::memory {

class CudaTracker {
 public:
  // Blocks that are live already are queued first, so that the account starts equal to torch's
  // allocated_bytes.
  // `refused` runs when the allocator is about to throw for want of memory, outside its lock.
  static std::unique_ptr<CudaTracker> attach(EventQueue& queue, c10::DeviceIndex device,
                                             std::function<void(std::uint64_t requested_bytes)> refused);
  virtual ~CudaTracker() = default;

  virtual void settle() = 0;  // learns the size of the latest allocation; call before emptying the queue
  virtual std::uint64_t allocated_bytes() const = 0;
};

}  // namespace snug::memory
