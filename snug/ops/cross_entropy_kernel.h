// Softmax, loss and the logits' gradient in place on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

struct CrossEntropy {
  void* logits = nullptr;  // [rows, columns]; becomes its own gradient
  const std::int64_t* targets = nullptr;
  float* losses = nullptr;  // one per row
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t columns = 0;  // those beyond the vocabulary are not read; their gradient is 0
  std::int64_t ignore_index = 0;
  float scale = 1, grad_scale = 1;  // of the losses, of the gradient
  bool wants_grad = true;
  KernelDtype dtype{};
};

// A target outside the vocabulary makes its loss NaN.
cudaError_t launch(const CrossEntropy& loss, cudaStream_t stream);

}  // namespace snug::ops
