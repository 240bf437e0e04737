// A block takes a stretch of one tensor; which, it finds in the launch's arguments.
#include "snug/ops/kernel_vector.cuh"
#include "snug/ops/update_kernel.h"

namespace snug::ops {
namespace {

#include "snug/ops/update_arithmetic.h"

constexpr int kThreads = 256;

template <WeightKind kKind, int kCount, class Entry>
__device__ void read(const Entry& entry, std::int64_t at, float (&weights)[kCount]) {
  if constexpr (kKind == WeightKind::Plain) {
    load(static_cast<const float*>(entry.weights) + at, weights);
  } else if constexpr (kKind == WeightKind::Remainder) {
    const auto nearest = *reinterpret_cast<const Packed<std::uint16_t, kCount>*>(
        static_cast<const std::uint16_t*>(entry.weights) + at);
    const auto remainders = *reinterpret_cast<const Packed<std::int16_t, kCount>*>(
        static_cast<const std::int16_t*>(entry.masters) + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      weights[i] = SplitFloat{nearest.values[i], remainders.values[i]}.joined();
  } else {
    load(static_cast<const float*>(entry.masters) + at, weights);
  }
}

template <WeightKind kKind, int kCount, class Entry>
__device__ void write(const Entry& entry, std::int64_t at, const float (&weights)[kCount]) {
  if constexpr (kKind == WeightKind::Plain) {
    store(weights, static_cast<float*>(entry.weights) + at);
  } else if constexpr (kKind == WeightKind::Remainder) {
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
  } else {
    using Half = std::conditional_t<kKind == WeightKind::HalfMaster, __half, __nv_bfloat16>;
    store(weights, static_cast<float*>(entry.masters) + at);
    store(weights, static_cast<Half*>(entry.weights) + at);
  }
}

template <class Rule, class Gradient, WeightKind kKind, int kCount>
__global__ void __launch_bounds__(kThreads) step(const __grid_constant__ UpdateBatch<Rule> batch) {
  if (batch.skip && *batch.skip != 0) return;
  __shared__ Rule shared;
  int number = 0;
  while (static_cast<int>(blockIdx.x) >= batch.first_block[number + 1]) ++number;
  const auto& entry = batch.entries[number];
  if (threadIdx.x == 0) shared = batch.rule.at_step(entry.step ? *entry.step : 0);
  __syncthreads();
  const Rule rule = shared;
  const float factor = batch.factor ? *batch.factor : 1;
  const std::int64_t first =
      (static_cast<int>(blockIdx.x) - batch.first_block[number]) * kUpdateBlockElements;
  const std::int64_t last = min(first + kUpdateBlockElements, entry.count);
  for (std::int64_t at = first + threadIdx.x * kCount; at < last; at += kThreads * kCount) {
    float weights[kCount], gradients[kCount], states[2][kCount] = {};
    read<kKind>(entry, at, weights);
    load(static_cast<const Gradient*>(entry.gradients) + at, gradients);
#pragma unroll
    for (int state = 0; state < Rule::kStates; ++state) load(entry.states[state] + at, states[state]);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      update(rule, Scalars<true>(), weights[i], states[0][i], states[1][i], gradients[i] * factor);
    write<kKind>(entry, at, weights);
#pragma unroll
    for (int state = 0; state < Rule::kStates; ++state) store(states[state], entry.states[state] + at);
  }
}

__global__ void correct(const AdamWCorrections corrections) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= corrections.count) return;
  const AdamWRule rule = corrections.rule.at_step(corrections.steps[i]);
  corrections.to[2 * i] = rule.correction1;
  corrections.to[2 * i + 1] = rule.correction2_root;
}

template <class Gradient, WeightKind kKind, class Rule>
void launch_kind(const UpdateBatch<Rule>& batch, cudaStream_t stream) {
  const int blocks = batch.first_block[batch.entry_count];
  if (batch.wide)
    step<Rule, Gradient, kKind, kUpdateVector><<<blocks, kThreads, 0, stream>>>(batch);
  else
    step<Rule, Gradient, kKind, 1><<<blocks, kThreads, 0, stream>>>(batch);
}

// A gradient is fp32 or of the weight's type.
template <class Half, WeightKind kKind, class Rule>
void launch_half(const UpdateBatch<Rule>& batch, cudaStream_t stream) {
  if (batch.gradients == KernelDtype::Float)
    launch_kind<float, kKind>(batch, stream);
  else
    launch_kind<Half, kKind>(batch, stream);
}

template <class Rule>
cudaError_t launch_any(const UpdateBatch<Rule>& batch, cudaStream_t stream) {
  switch (batch.kind) {
    case WeightKind::Plain:
      launch_kind<float, WeightKind::Plain>(batch, stream);
      break;
    case WeightKind::Bf16Master:
      launch_half<__nv_bfloat16, WeightKind::Bf16Master>(batch, stream);
      break;
    case WeightKind::HalfMaster:
      launch_half<__half, WeightKind::HalfMaster>(batch, stream);
      break;
    case WeightKind::Remainder:
      launch_half<__nv_bfloat16, WeightKind::Remainder>(batch, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const UpdateBatch<AdamWRule>& batch, cudaStream_t stream) {
  return launch_any(batch, stream);
}
cudaError_t launch(const UpdateBatch<SgdRule<false>>& batch, cudaStream_t stream) {
  return launch_any(batch, stream);
}
cudaError_t launch(const UpdateBatch<SgdRule<true>>& batch, cudaStream_t stream) {
  return launch_any(batch, stream);
}

cudaError_t launch(const AdamWCorrections& corrections, cudaStream_t stream) {
  const auto blocks = static_cast<int>((corrections.count + kThreads - 1) / kThreads);
  correct<<<blocks, kThreads, 0, stream>>>(corrections);
  return cudaGetLastError();
}

}  // namespace snug::ops
