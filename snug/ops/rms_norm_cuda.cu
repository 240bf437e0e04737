// One block per row, which stays in registers between the sum over it and what is made of it: every byte is
// read once and written once. In the backward a block takes many rows and keeps its part of the weight's
// gradient; a second kernel adds the parts, always in the same order.
#include <algorithm>
#include <type_traits>

#include "snug/ops/kernel_vector.cuh"
#include "snug/ops/rms_norm_kernel.h"

namespace snug::ops {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr int kBlocksPerProcessor = 4;  // of the backward

// Every thread gets the sum of all. `scratch` is not used again before the next __syncthreads().
__device__ float block_sum(float value, float* scratch) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  const int warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  value = lane < warps ? scratch[lane] : 0;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// The first column of a thread's part, kCount columns wide.
template <int kCount>
__device__ int column(int part) {
  return (part * blockDim.x + threadIdx.x) * kCount;
}

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

// With g = grad_out * weight and n = x * rstd: grad_x = rstd * (g - n * mean(g * n)) + grad_sum.
template <class T, int kCount, int kParts, bool kAdds>
__global__ void __launch_bounds__(kMostThreads) backward(RmsNormBackward norm) {
  __shared__ float scratch[2][kWarp];  // in turn: a slow warp may still read the last row's
  float weight[kParts][kCount], grad_weight[kParts][kCount] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    if (const int at = column<kCount>(part); at < norm.hidden)
      load(static_cast<const T*>(norm.weight) + at, weight[part]);
  int turn = 0;
  for (std::int64_t number = blockIdx.x; number < norm.rows; number += gridDim.x, turn ^= 1) {
    const std::int64_t row = number * norm.hidden;
    const float rstd = norm.rstd[number];
    float g[kParts][kCount], n[kParts][kCount];
    float dot = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      load(static_cast<const T*>(norm.grad_out) + row + at, g[part]);
      load(static_cast<const T*>(norm.x) + row + at, n[part]);
      for (int i = 0; i < kCount; ++i) {
        n[part][i] *= rstd;
        grad_weight[part][i] += g[part][i] * n[part][i];
        g[part][i] *= weight[part][i];
        dot += g[part][i] * n[part][i];
      }
    }
    const float mean = block_sum(dot, scratch[turn]) / norm.hidden;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      for (int i = 0; i < kCount; ++i) g[part][i] = rstd * (g[part][i] - n[part][i] * mean);
      if constexpr (kAdds) {
        float by_sum[kCount];
        load(static_cast<const T*>(norm.grad_sum) + row + at, by_sum);
        for (int i = 0; i < kCount; ++i) g[part][i] += by_sum[i];
      }
      store(g[part], static_cast<T*>(norm.grad_x) + row + at);
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

// A warp's width of columns per block; its warps share the rows.
template <class T>
__global__ void add_parts(const float* partial, int parts, int hidden, T* grad_weight) {
  __shared__ float sums[kWarp][kWarp + 1];
  const int column = blockIdx.x * kWarp + threadIdx.x;
  float sum = 0;
  if (column < hidden)
    for (int part = threadIdx.y; part < parts; part += kWarp)
      sum += partial[static_cast<std::int64_t>(part) * hidden + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= hidden) return;
  for (int i = 1; i < kWarp; ++i) sum += sums[i][threadIdx.x];
  grad_weight[column] = static_cast<T>(sum);
}

int threads_for(int hidden, int per_thread) {
  return (hidden + per_thread * kWarp - 1) / (per_thread * kWarp) * kWarp;
}

// Calls use(integral constant) with the number of parts that a thread takes, so that a block holds a row.
template <int kCount, class Use>
cudaError_t with_parts(int hidden, int least_parts, Use use) {
  if (least_parts == 1 && threads_for(hidden, kCount) <= kMostThreads)
    return use(std::integral_constant<int, 1>{});
  if (threads_for(hidden, kCount * 2) <= kMostThreads) return use(std::integral_constant<int, 2>{});
  if (threads_for(hidden, kCount * 8) <= kMostThreads) return use(std::integral_constant<int, 8>{});
  if constexpr (kCount == 1)
    if (threads_for(hidden, 32) <= kMostThreads) return use(std::integral_constant<int, 32>{});
  return cudaErrorInvalidValue;
}

// Calls use(integral constant) with the number of elements loaded at once.
template <class T, class Use>
cudaError_t with_count(int hidden, bool aligned, Use use) {
  constexpr int kWide = 16 / sizeof(T);
  if (aligned && hidden % kWide == 0) return use(std::integral_constant<int, kWide>{});
  return use(std::integral_constant<int, 1>{});
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
        const int columns = (norm.hidden + kWarp - 1) / kWarp;
        add_parts<<<columns, dim3(kWarp, kWarp), 0, stream>>>(norm.partial, norm.blocks, norm.hidden,
                                                              static_cast<T*>(norm.grad_weight));
        return cudaGetLastError();
      });
    });
  });
  return status;
}

int rms_norm_backward_blocks(std::int64_t rows) {
  int device = 0, processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<int>(std::min<std::int64_t>(rows, processors * kBlocksPerProcessor));
}

}  // namespace snug::ops
