#include "snug/host/cuda_stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

namespace snug::host {

c10::cuda::CUDAStream make_cuda_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard guard(device);
  int lowest = 0, highest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return c10::cuda::getStreamFromExternal(stream, device);
}

}  // namespace snug::host
