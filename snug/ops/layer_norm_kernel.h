// layer_norm on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

// Everything is dense: rows of `hidden`.
struct LayerNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: the norm is of x itself
  void* sum = nullptr;             // x + residual
  const void* weight = nullptr;
  const void* bias = nullptr;  // null: none is added
  void* out = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0;
  int hidden = 0;
  float eps = 0;
  KernelDtype dtype{};
};

struct LayerNormBackward {
  const void* grad_out = nullptr;
  const void* grad_sum = nullptr;  // null: none is added
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  void* grad_weight = nullptr;
  void* grad_bias = nullptr;  // null: there is no bias
  float* partial = nullptr;   // [blocks, hidden], and as much again with a bias
  int blocks = 0;             // at most rows
  std::int64_t rows = 0;
  int hidden = 0;
  KernelDtype dtype{};
};

cudaError_t launch(const LayerNormForward& norm, cudaStream_t stream);
cudaError_t launch(const LayerNormBackward& norm, cudaStream_t stream);

}  // namespace snug::ops
