// Three figures that users confuse, told apart: what tensors hold, what torch's allocator holds, what the
// process holds.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "snug/base/export.h"

namespace snug::memory {

struct ProcessMemory {
  std::uint64_t allocated_bytes = 0;  // live tensors
  std::uint64_t reserved_bytes =
      0;  // held by torch's allocator: allocated + cached. On the CPU nothing is cached
  std::uint64_t peak_reserved_bytes = 0;  // on CUDA, the highest since the process began
  std::uint64_t process_bytes = 0;  // CUDA: as one sees it who looks at the device; CPU: the resident set
  std::string source;               // where process_bytes comes from
  std::int64_t retries = 0;  // how often torch's allocator had to give back its cache to meet a request

  // Owned by no allocator: context, libraries, code.
  std::uint64_t outside_bytes() const {
    return process_bytes > reserved_bytes ? process_bytes - reserved_bytes : 0;
  }
};

// `live_bytes`: the tracker's account of a CPU device; unused on CUDA, where torch keeps its own.
SNUG_API ProcessMemory process_memory(c10::Device device, std::uint64_t live_bytes = 0);

// Before this process has a context there: what is used then is not ours. Called by all that is below; call
// it before a first use of CUDA that is not through them.
SNUG_API void note_memory_before_context(c10::DeviceIndex device);

struct CudaDevice {
  std::string name;  // as the driver has it: "NVIDIA H200"
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;  // for all processes
  bool is_the_hosts = false;     // it has no memory of its own
};
SNUG_API CudaDevice cuda_device(c10::DeviceIndex device);

// Why there is no GPU, as far as the driver says: "no NVIDIA driver is installed".
SNUG_API std::string why_no_cuda_device();

// Lets the segments of torch's CUDA allocator grow, instead of taking many of fixed sizes that fit no later
// request: without that it held up to 17 % more than its tensors. What the user set in PYTORCH_ALLOC_CONF
// stands. Returns what was before.
SNUG_API bool let_cuda_segments_grow(bool grow);

// The share of the device's memory that torch's allocator may hold: all of it, 1, at first. See
// budget.h.
SNUG_API double cuda_allocator_share(c10::DeviceIndex device);
SNUG_API void cap_cuda_allocator(c10::DeviceIndex device, double share);
SNUG_API void empty_cuda_cache();

}  // namespace snug::memory
