// Watches torch's CUDA caching allocator. Internal to memory. cuda_tracker.cpp, or no_cuda_tracker.cpp in a
// CPU build.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "snug/memory/event_queue.h"
#include "snug/trace/allocator_layout.h"

namespace snug::memory {

class CudaTracker {
 public:
  // Blocks that are live already are queued first, so that the account starts equal to torch's
  // allocated_bytes.
  static std::unique_ptr<CudaTracker> attach(EventQueue& queue, c10::DeviceIndex device);
  virtual ~CudaTracker() = default;

  virtual void take(std::vector<RawEvent>& into) = 0;  // empties the queue once every size in it is known
  virtual std::uint64_t allocated_bytes() const = 0;
  virtual trace::AllocatorLayout layout() const = 0;  // blocks have no ids
};

}  // namespace snug::memory
