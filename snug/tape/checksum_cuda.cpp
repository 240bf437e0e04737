#include "snug/tape/checksum_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "snug/tape/checksum_kernel.h"

namespace snug::tape {

void add_checksum_on_cuda(c10::Device device, const void* bytes, std::size_t count, std::uint64_t* sum) {
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(add_checksum(bytes, count, sum, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace snug::tape
