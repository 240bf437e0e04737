// AdamW on CUDA, without torch: plain pointers and a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace snug::ops {

// A launch's worth of tensors of one kind.
struct AdamWBatch {
  static constexpr int kMost = 48;  // so that the whole fits into a kernel's arguments
  struct Entry {
    void* weights;
    const void* gradients;
    void* masters;  // fp32 masters or int16 remainders
    float* exp_avgs;
    float* exp_avg_sqs;
    const float* step;
    std::int64_t count;
  };
  enum class Kind { Plain, Master, Remainder };

  Entry entries[kMost];
  int first_block[kMost + 1];  // of each entry; the last is their number
  int entry_count = 0;
  Kind kind{};
  bool half_gradients = false;
  bool wide = false;  // every address and count takes vectors
  const float* factor = nullptr;
  float lr = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
};

constexpr std::int64_t kAdamWBlockElements = 8192;

cudaError_t launch(const AdamWBatch& batch, cudaStream_t stream);

}  // namespace snug::ops
