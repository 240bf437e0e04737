// One block per row, twice over it: once for the maximum and the sum, once to write the gradient. The second
// time the row comes from the cache.
#include <cmath>

#include "snug/ops/cross_entropy_kernel.h"
#include "snug/ops/kernel_vector.cuh"

namespace snug::ops {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 512;
constexpr int kTurns = 4;  // vectors that a thread loads before it looks at them

// The sum of exp(value - most) over some values.
struct Exponentials {
  float most = -INFINITY, sum = 0;
};

// So far all may be -inf, which is not to be taken from itself. NaN is seen in the sum.
__device__ float base_of(float most) {
  return most == -INFINITY ? 0 : most;
}

__device__ Exponentials together(Exponentials a, Exponentials b) {
  const float most = fmaxf(a.most, b.most);
  const float base = base_of(most);
  return {most, a.sum * __expf(a.most - base) + b.sum * __expf(b.most - base)};
}

__device__ Exponentials of_the_block(Exponentials mine) {
  __shared__ Exponentials warps[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    mine = together(mine, {__shfl_xor_sync(~0u, mine.most, offset), __shfl_xor_sync(~0u, mine.sum, offset)});
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Exponentials all = warps[0];
  for (int i = 1; i < kThreads / kWarp; ++i) all = together(all, warps[i]);
  return all;
}

// Calls use(column, values) for the vectors of a row that are this thread's, a few loaded at a time.
template <int kCount, class T, class Use>
__device__ void each_vector(const T* row, int columns, Use use) {
  for (int first = threadIdx.x * kCount; first < columns; first += kTurns * kThreads * kCount) {
    Packed<T, kCount> packed[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int at = first + turn * kThreads * kCount;
      if (at < columns) packed[turn] = load_packed<kCount>(row + at);
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int at = first + turn * kThreads * kCount;
      if (at >= columns) return;
      float values[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(packed[turn].values[i]);
      use(at, values);
    }
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) cross_entropy(CrossEntropy loss) {
  T* const row = static_cast<T*>(loss.logits) + static_cast<std::int64_t>(blockIdx.x) * loss.columns;
  const std::int64_t target = loss.targets[blockIdx.x];
  const int words = static_cast<int>(loss.vocabulary), whole = words / kCount * kCount;
  const int columns = static_cast<int>(loss.columns);
  if (target == loss.ignore_index) {
    if (threadIdx.x == 0) loss.losses[blockIdx.x] = 0;
    if (loss.wants_grad)
      for (int at = threadIdx.x; at < columns; at += kThreads) row[at] = static_cast<T>(0.0f);
    return;
  }

  Exponentials mine;
  each_vector<kCount>(row, whole, [&](int, const float(&values)[kCount]) {
    float most = mine.most;
    for (int i = 0; i < kCount; ++i) most = fmaxf(most, values[i]);
    const float base = base_of(most);
    float sum = mine.sum * __expf(mine.most - base);
    for (int i = 0; i < kCount; ++i) sum += __expf(values[i] - base);
    mine = {most, sum};
  });
  for (int at = whole + threadIdx.x; at < words; at += kThreads)
    mine = together(mine, {static_cast<float>(row[at]), 1});
  const bool is_known = target >= 0 && target < words;
  const float wanted = is_known ? static_cast<float>(row[target]) : NAN;  // before anyone writes
  const Exponentials all = of_the_block(mine);
  if (threadIdx.x == 0) loss.losses[blockIdx.x] = (all.most + logf(all.sum) - wanted) * loss.scale;
  if (!loss.wants_grad) return;

  const float share = loss.grad_scale / all.sum;
  each_vector<kCount>(row, whole, [&](int at, float(&values)[kCount]) {
    for (int i = 0; i < kCount; ++i) values[i] = __expf(values[i] - all.most) * share;
    store(values, row + at);
  });
  for (int at = whole + threadIdx.x; at < words; at += kThreads)
    row[at] = static_cast<T>(__expf(static_cast<float>(row[at]) - all.most) * share);
  for (int at = words + threadIdx.x; at < columns; at += kThreads) row[at] = static_cast<T>(0.0f);
  __syncthreads();
  if (threadIdx.x == 0 && is_known)
    row[target] = static_cast<T>(__expf(wanted - all.most) * share - loss.grad_scale);
}

}  // namespace

cudaError_t launch(const CrossEntropy& loss, cudaStream_t stream) {
  with_type(loss.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const auto blocks = static_cast<unsigned>(loss.rows);
    if (is_aligned(loss.logits) && loss.columns % kWide == 0)
      cross_entropy<T, kWide><<<blocks, kThreads, 0, stream>>>(loss);
    else
      cross_entropy<T, 1><<<blocks, kThreads, 0, stream>>>(loss);
  });
  return cudaGetLastError();
}

}  // namespace snug::ops
