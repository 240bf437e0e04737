// The backward of embedding on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

constexpr int kEmbeddingChunk = 32;                     // tokens that one block adds up
constexpr std::int64_t kEmbeddingMostHidden = 1 << 22;  // a grid has 65,535 blocks in its second dimension

struct EmbeddingBackward {
  const void* grad_out = nullptr;        // [count, hidden]
  const std::int64_t* tokens = nullptr;  // [count], ascending
  const std::int64_t* order = nullptr;   // [count]: the position in grad_out of each of them
  void* grad_weight = nullptr;           // [rows, hidden], zeros
  float* partial = nullptr;              // [chunks, 2, hidden], aligned; chunks of kEmbeddingChunk tokens
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  KernelDtype dtype{};
};

// Tokens outside [0, rows) are left out.
cudaError_t launch(const EmbeddingBackward& embedding, cudaStream_t stream);

}  // namespace snug::ops
