// One block per row, which stays in registers between the sum over it and what is made of it: every byte is
// read once and written once. In the backward a block takes many rows and keeps its part of the weight's
// gradient; a second kernel adds the parts, always in the same order.
#include "snug/ops/norm_rows.cuh"
#include "snug/ops/rms_norm_kernel.h"

namespace snug::ops {
namespace {

template <class T, int kCount, int kParts, bool kAdds>
__global__ void __launch_bounds__(kMostThreads) forward(RmsNormForward norm) {
  __shared__ float scratch[kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * norm.hidden;
  float values[kParts][kCount];
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    load(static_cast<const T*>(norm.x) + row + at, values[part]);
    if constexpr (kAdds) {
      float residual[kCount];
      load(static_cast<const T*>(norm.residual) + row + at, residual);
      for (int i = 0; i < kCount; ++i) values[part][i] = rounded<T>(values[part][i] + residual[i]);
      store(values[part], static_cast<T*>(norm.sum) + row + at);
    }
    for (int i = 0; i < kCount; ++i) squares += values[part][i] * values[part][i];
  }
  const float rstd = 1 / sqrtf(block_sum(squares, scratch) / norm.hidden + norm.eps);
  if (threadIdx.x == 0) norm.rstd[blockIdx.x] = rstd;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    float weight[kCount];
    load(static_cast<const T*>(norm.weight) + at, weight);
    for (int i = 0; i < kCount; ++i) values[part][i] = values[part][i] * rstd * weight[i];
    store(values[part], static_cast<T*>(norm.out) + row + at);
  }
}

// With g = grad_out * weight and n = x * rstd: grad_x = rstd * (g - n * mean(g * n)) + grad_sum. Several rows
// at a time, as they lie in memory, so that more of it is on its way while sums are made.
template <class T, int kCount, int kParts, bool kAdds>
__global__ void __launch_bounds__(kMostThreads) backward(RmsNormBackward norm) {
  constexpr int kRows = kRowsAtATime<kParts>;
  __shared__ float scratch[2][kRows * kWarp];  // in turn: a slow warp may still read the last rows'
  Packed<T, kCount> weight[kParts];
  float grad_weight[kParts][kCount] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    if (const int at = column<kCount>(part); at < norm.hidden)
      weight[part] = load_packed<kCount>(static_cast<const T*>(norm.weight) + at);
  int turn = 0;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows; first < norm.rows;
       first += static_cast<std::int64_t>(gridDim.x) * kRows, turn ^= 1) {
    Packed<T, kCount> x[kRows][kParts], grad[kRows][kParts];
    float rstd[kRows], means[kRows] = {};
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (first + row >= norm.rows) continue;
      rstd[row] = norm.rstd[first + row];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = column<kCount>(part);
        if (at >= norm.hidden) continue;
        x[row][part] = load_packed<kCount>(static_cast<const T*>(norm.x) + (first + row) * norm.hidden + at);
        grad[row][part] =
            load_packed<kCount>(static_cast<const T*>(norm.grad_out) + (first + row) * norm.hidden + at);
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (first + row >= norm.rows) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (column<kCount>(part) >= norm.hidden) continue;
        for (int i = 0; i < kCount; ++i) {
          const float n = static_cast<float>(x[row][part].values[i]) * rstd[row];
          const float g = static_cast<float>(grad[row][part].values[i]);
          grad_weight[part][i] += g * n;
          means[row] += g * static_cast<float>(weight[part].values[i]) * n;
        }
      }
    }
    block_sums(means, scratch[turn]);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (first + row >= norm.rows) continue;
      const float mean = means[row] / norm.hidden;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = column<kCount>(part);
        if (at >= norm.hidden) continue;
        float grad_x[kCount];
        for (int i = 0; i < kCount; ++i) {
          const float n = static_cast<float>(x[row][part].values[i]) * rstd[row];
          const float g =
              static_cast<float>(grad[row][part].values[i]) * static_cast<float>(weight[part].values[i]);
          grad_x[i] = rstd[row] * (g - n * mean);
        }
        if constexpr (kAdds) {
          float by_sum[kCount];
          load(static_cast<const T*>(norm.grad_sum) + (first + row) * norm.hidden + at, by_sum);
          for (int i = 0; i < kCount; ++i) grad_x[i] += by_sum[i];
        }
        store(grad_x, static_cast<T*>(norm.grad_x) + (first + row) * norm.hidden + at);
      }
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    float* to = norm.partial + static_cast<std::int64_t>(blockIdx.x) * norm.hidden + at;
    for (int i = 0; i < kCount; ++i) to[i] = grad_weight[part][i];
  }
}

}  // namespace

cudaError_t launch(const RmsNormForward& norm, cudaStream_t stream) {
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.residual) && is_aligned(norm.weight) &&
                       is_aligned(norm.sum) && is_aligned(norm.out);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      // Two vectors in flight per thread, unless the row is short.
      const int least_parts = !norm.residual && norm.hidden >= 1024 ? 2 : 1;
      return with_parts<count>(norm.hidden, least_parts, [&](auto parts) {
        const int threads = threads_for(norm.hidden, count * parts);
        const auto blocks = static_cast<unsigned>(norm.rows);
        if (norm.residual)
          forward<T, count, parts, true><<<blocks, threads, 0, stream>>>(norm);
        else
          forward<T, count, parts, false><<<blocks, threads, 0, stream>>>(norm);
        return cudaGetLastError();
      });
    });
  });
  return status;
}

cudaError_t launch(const RmsNormBackward& norm, cudaStream_t stream) {
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.grad_sum) && is_aligned(norm.weight) &&
                       is_aligned(norm.grad_out) && is_aligned(norm.grad_x);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      return with_parts<count>(norm.hidden, 1, [&](auto parts) {
        const int threads = threads_for(norm.hidden, count * parts);
        if (norm.grad_sum)
          backward<T, count, parts, true><<<norm.blocks, threads, 0, stream>>>(norm);
        else
          backward<T, count, parts, false><<<norm.blocks, threads, 0, stream>>>(norm);
        launch_add_parts<T>(norm.partial, norm.blocks, norm.hidden, norm.grad_weight, nullptr, stream);
        return cudaGetLastError();
      });
    });
  });
  return status;
}

}  // namespace snug::ops
