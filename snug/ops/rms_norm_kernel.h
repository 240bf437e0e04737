// The norms on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

// Everything is dense: rows of `hidden`.
struct RmsNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none is added, and there is no sum
  const void* weight = nullptr;
  void* sum = nullptr;
  void* out = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0;
  int hidden = 0;
  float eps = 0;
  KernelDtype dtype{};
};

struct RmsNormBackward {
  const void* grad_out = nullptr;
  const void* grad_sum = nullptr;  // null: none is added
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  void* grad_weight = nullptr;
  float* partial = nullptr;  // [blocks, hidden]
  int blocks = 0;
  std::int64_t rows = 0;
  int hidden = 0;
  KernelDtype dtype{};
};

cudaError_t launch(const RmsNormForward& norm, cudaStream_t stream);
cudaError_t launch(const RmsNormBackward& norm, cudaStream_t stream);

}  // namespace snug::ops
