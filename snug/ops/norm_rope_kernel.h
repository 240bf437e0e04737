// rms_norm over each head, then rope, on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

// Everything is dense: x and out [batch, tokens, heads, head_dim], cos and sin [tokens, head_dim / 2].
struct NormRopeForward {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* out = nullptr;
  float* rstd = nullptr;
  std::int64_t rows = 0;  // batch * tokens * heads
  std::int64_t heads = 0, tokens = 0;
  int head_dim = 0;
  float eps = 0;
  KernelDtype dtype{};
};

struct NormRopeBackward {
  const void* grad_out = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  const float* rstd = nullptr;
  void* grad_x = nullptr;
  void* grad_weight = nullptr;
  float* partial = nullptr;  // [blocks, head_dim]
  int blocks = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0, tokens = 0;
  int head_dim = 0;
  KernelDtype dtype{};
};

cudaError_t launch(const NormRopeForward& norm, cudaStream_t stream);
cudaError_t launch(const NormRopeBackward& norm, cudaStream_t stream);

}  // namespace snug::ops
