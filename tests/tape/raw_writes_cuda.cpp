#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "tests/tape/raw_writes.h"

void launch_raw_scale(float* data, float factor, std::int64_t count, void* stream);

namespace snug::tape {

void raw_scale(const at::Tensor& tensor, float factor, std::int64_t first, std::int64_t last) {
  auto* const data = static_cast<float*>(tensor.storage().mutable_data()) + tensor.storage_offset();
  launch_raw_scale(data + first, factor, last - first, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace snug::tape
