// Optimizer steps on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "snug/ops/kernel_dtype.h"
#include "snug/ops/update_rules.h"

namespace snug::ops {

// A launch's worth of tensors of one kind.
template <class Rule>
struct UpdateBatch {
  static constexpr int kMost = 48;  // so that the whole fits into a kernel's arguments
  struct Entry {
    void* weights;
    const void* gradients;
    void* masters;  // fp32 masters or int16 remainders
    float* states[2];
    const float* step;  // or null
    std::int64_t count;
  };

  Entry entries[kMost];
  int first_block[kMost + 1];  // of each entry; the last is their number
  int entry_count = 0;
  WeightKind kind{};
  KernelDtype gradients{};
  bool wide = false;  // every address and count takes vectors
  const float* factor = nullptr;
  const float* skip = nullptr;
  Rule rule;
};

// What AdamW's rule makes of every step, two numbers each.
struct AdamWCorrections {
  const float* steps;
  float* to;
  std::int64_t count;  // of steps, not 0
  AdamWRule rule;
};

constexpr int kUpdateVector = 4;                     // elements per thread and turn
constexpr std::int64_t kUpdateBlockElements = 2048;  // neighbours are worked on together

cudaError_t launch(const UpdateBatch<AdamWRule>& batch, cudaStream_t stream);
cudaError_t launch(const UpdateBatch<SgdRule<false>>& batch, cudaStream_t stream);
cudaError_t launch(const UpdateBatch<SgdRule<true>>& batch, cudaStream_t stream);
cudaError_t launch(const AdamWCorrections& corrections, cudaStream_t stream);

}  // namespace snug::ops
