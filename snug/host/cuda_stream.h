// A stream of our own, of the highest priority and never destroyed: those of torch's pool are handed out
// again after 32 requests, and the first of them makes all of the pool.
#pragma once

#include <c10/cuda/CUDAStream.h>

namespace snug::host {

c10::cuda::CUDAStream make_cuda_stream(c10::DeviceIndex device);

}  // namespace snug::host
