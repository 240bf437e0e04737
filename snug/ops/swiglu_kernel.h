// swiglu on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

struct SwigluForward {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  KernelDtype dtype{};
};

struct SwigluBackward {
  const void* grad_out = nullptr;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* grad_gate = nullptr;
  void* grad_up = nullptr;
  std::int64_t count = 0;
  KernelDtype dtype{};
};

cudaError_t launch(const SwigluForward& swiglu, cudaStream_t stream);
cudaError_t launch(const SwigluBackward& swiglu, cudaStream_t stream);

}  // namespace snug::ops
