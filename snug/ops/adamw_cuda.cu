// A block takes a stretch of one tensor; which, it finds in the launch's arguments.
#include "snug/ops/adamw_kernel.h"
#include "snug/ops/adamw_math.h"
#include "snug/ops/kernel_vector.cuh"

namespace snug::ops {
namespace {

constexpr int kThreads = 256;

using Kind = AdamWBatch::Kind;

template <Kind kKind, int kCount>
__device__ void read(const AdamWBatch::Entry& entry, std::int64_t at, float (&weights)[kCount]) {
  if constexpr (kKind == Kind::Plain) load(static_cast<const float*>(entry.weights) + at, weights);
  if constexpr (kKind == Kind::Master) load(static_cast<const float*>(entry.masters) + at, weights);
  if constexpr (kKind == Kind::Remainder) {
    const auto nearest = *reinterpret_cast<const Packed<std::uint16_t, kCount>*>(
        static_cast<const std::uint16_t*>(entry.weights) + at);
    const auto remainders = *reinterpret_cast<const Packed<std::int16_t, kCount>*>(
        static_cast<const std::int16_t*>(entry.masters) + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      weights[i] = SplitFloat{nearest.values[i], remainders.values[i]}.joined();
  }
}

template <Kind kKind, int kCount>
__device__ void write(const AdamWBatch::Entry& entry, std::int64_t at, const float (&weights)[kCount]) {
  if constexpr (kKind == Kind::Plain) store(weights, static_cast<float*>(entry.weights) + at);
  if constexpr (kKind == Kind::Master) {
    store(weights, static_cast<float*>(entry.masters) + at);
    store(weights, static_cast<__nv_bfloat16*>(entry.weights) + at);
  }
  if constexpr (kKind == Kind::Remainder) {
    Packed<std::uint16_t, kCount> nearest;
    Packed<std::int16_t, kCount> remainders;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const SplitFloat split = SplitFloat::of(weights[i]);
      nearest.values[i] = split.nearest;
      remainders.values[i] = split.remainder;
    }
    *reinterpret_cast<Packed<std::uint16_t, kCount>*>(static_cast<std::uint16_t*>(entry.weights) + at) =
        nearest;
    *reinterpret_cast<Packed<std::int16_t, kCount>*>(static_cast<std::int16_t*>(entry.masters) + at) =
        remainders;
  }
}

template <class Gradient, Kind kKind, int kCount>
__global__ void __launch_bounds__(kThreads) step(const __grid_constant__ AdamWBatch batch) {
  __shared__ AdamWMath shared;
  int number = 0;
  while (static_cast<int>(blockIdx.x) >= batch.first_block[number + 1]) ++number;
  const AdamWBatch::Entry& entry = batch.entries[number];
  if (threadIdx.x == 0) {
    const float count = *entry.step;
    shared = {batch.lr,
              batch.beta1,
              batch.beta2,
              batch.weight_decay,
              batch.eps,
              1 - powf(batch.beta1, count),
              sqrtf(1 - powf(batch.beta2, count))};
  }
  __syncthreads();
  const AdamWMath math = shared;
  const float factor = batch.factor ? *batch.factor : 1;
  const std::int64_t first = (static_cast<int>(blockIdx.x) - batch.first_block[number]) * kAdamWBlockElements;
  const std::int64_t last = min(first + kAdamWBlockElements, entry.count);
  for (std::int64_t at = first + threadIdx.x * kCount; at < last; at += kThreads * kCount) {
    float weights[kCount], gradients[kCount], exp_avgs[kCount], exp_avg_sqs[kCount];
    read<kKind>(entry, at, weights);
    load(static_cast<const Gradient*>(entry.gradients) + at, gradients);
    load(entry.exp_avgs + at, exp_avgs);
    load(entry.exp_avg_sqs + at, exp_avg_sqs);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      math.update(weights[i], exp_avgs[i], exp_avg_sqs[i], gradients[i] * factor);
    write<kKind>(entry, at, weights);
    store(exp_avgs, entry.exp_avgs + at);
    store(exp_avg_sqs, entry.exp_avg_sqs + at);
  }
}

template <class Gradient, Kind kKind>
void launch_kind(const AdamWBatch& batch, cudaStream_t stream) {
  constexpr int kWide = 4;  // sixteen bytes of fp32
  const int blocks = batch.first_block[batch.entry_count];
  if (batch.wide)
    step<Gradient, kKind, kWide><<<blocks, kThreads, 0, stream>>>(batch);
  else
    step<Gradient, kKind, 1><<<blocks, kThreads, 0, stream>>>(batch);
}

}  // namespace

cudaError_t launch(const AdamWBatch& batch, cudaStream_t stream) {
  if (batch.kind == Kind::Plain)
    launch_kind<float, Kind::Plain>(batch, stream);
  else if (batch.kind == Kind::Master)
    batch.half_gradients ? launch_kind<__nv_bfloat16, Kind::Master>(batch, stream)
                         : launch_kind<float, Kind::Master>(batch, stream);
  else
    batch.half_gradients ? launch_kind<__nv_bfloat16, Kind::Remainder>(batch, stream)
                         : launch_kind<float, Kind::Remainder>(batch, stream);
  return cudaGetLastError();
}

}  // namespace snug::ops
