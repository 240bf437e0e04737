// gelu on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

struct GeluForward {
  const void* x = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  bool tanh = false;
  KernelDtype dtype{};
};

struct GeluBackward {
  const void* grad_out = nullptr;
  const void* x = nullptr;
  void* grad_x = nullptr;
  std::int64_t count = 0;
  bool tanh = false;
  KernelDtype dtype{};
};

cudaError_t launch(const GeluForward& gelu, cudaStream_t stream);
cudaError_t launch(const GeluBackward& gelu, cudaStream_t stream);

}  // namespace snug::ops
