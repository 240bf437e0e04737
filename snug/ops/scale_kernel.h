// A tensor times a number that is on the device, in place, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

struct ScaleInPlace {
  void* x = nullptr;
  const float* factor = nullptr;
  std::int64_t count = 0;
  KernelDtype dtype{};
};

cudaError_t launch(const ScaleInPlace& scale, cudaStream_t stream);

}  // namespace snug::ops
