// The sum of a matrix's rows on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

struct SumRows {
  const void* matrix = nullptr;
  std::int64_t rows = 0, columns = 0, row_stride = 0;
  float* partial = nullptr;  // [strips, columns]
  int strips = 0;
  void* sum = nullptr;
  KernelDtype dtype{}, sum_dtype{};
};

cudaError_t launch(const SumRows& sum, cudaStream_t stream);

}  // namespace snug::ops
