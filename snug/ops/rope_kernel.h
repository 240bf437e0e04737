// Rotary positions on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

// x is [batch, heads, tokens, head_dim] with these strides, in elements, the last dimension dense; out is
// dense as [batch, tokens, heads, head_dim]; cos and sin are dense as [tokens, half].
struct Rope {
  const void* x = nullptr;
  const void* cos = nullptr;
  const void* sin = nullptr;
  void* out = nullptr;
  std::int64_t batch = 0, heads = 0, tokens = 0;
  int half = 0;  // of head_dim
  std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;
  bool inverse = false;
  KernelDtype dtype{};
};

cudaError_t launch(const Rope& rope, cudaStream_t stream);

}  // namespace snug::ops
