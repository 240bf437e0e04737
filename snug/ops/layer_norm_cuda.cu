// One block per row, which stays in registers between the sums over it and what is made of it. In the
// backward a block takes many rows, asks for the next while it sums the last, and keeps its part of the
// gradients of weight and bias; a second kernel adds the parts, always in the same order.
#include "snug/ops/layer_norm_kernel.h"
#include "snug/ops/norm_rows.cuh"

namespace snug::ops {
namespace {

template <class T, int kCount, int kParts>
__global__ void __launch_bounds__(kMostThreads) forward(LayerNormForward norm) {
  __shared__ float scratch[2][kWarp];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * norm.hidden;
  float values[kParts][kCount];
  float sum = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    load(static_cast<const T*>(norm.x) + row + at, values[part]);
    for (int i = 0; i < kCount; ++i) sum += values[part][i];
  }
  const float mean = block_sum(sum, scratch[0]) / norm.hidden;
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (column<kCount>(part) >= norm.hidden) continue;
    for (int i = 0; i < kCount; ++i) {
      values[part][i] -= mean;
      squares += values[part][i] * values[part][i];
    }
  }
  const float rstd = 1 / sqrtf(block_sum(squares, scratch[1]) / norm.hidden + norm.eps);
  if (threadIdx.x == 0) {
    norm.mean[blockIdx.x] = mean;
    norm.rstd[blockIdx.x] = rstd;
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    float weight[kCount], bias[kCount] = {};
    load(static_cast<const T*>(norm.weight) + at, weight);
    if (norm.bias) load(static_cast<const T*>(norm.bias) + at, bias);
    for (int i = 0; i < kCount; ++i) values[part][i] = values[part][i] * rstd * weight[i] + bias[i];
    store(values[part], static_cast<T*>(norm.out) + row + at);
  }
}

// A thread's share of a row, as it lies in memory: half as many registers as in fp32.
template <class T, int kCount, int kParts>
struct Row {
  Packed<T, kCount> x[kParts], grad[kParts];
  float mean, rstd;

  __device__ void read(const LayerNormBackward& norm, std::int64_t number) {
    const std::int64_t row = number * norm.hidden;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      x[part] = load_packed<kCount>(static_cast<const T*>(norm.x) + row + at);
      grad[part] = load_packed<kCount>(static_cast<const T*>(norm.grad_out) + row + at);
    }
    mean = norm.mean[number];
    rstd = norm.rstd[number];
  }

  __device__ float n(int part, int i) const {
    return (static_cast<float>(x[part].values[i]) - mean) * rstd;
  }
  __device__ float g(int part, int i) const {
    return static_cast<float>(grad[part].values[i]);
  }
};

// With g = grad_out * weight and n = (x - mean) * rstd: grad_x = rstd * (g - mean(g) - n * mean(g * n)).
template <class T, int kCount, int kParts>
__global__ void __launch_bounds__(kMostThreads) backward(LayerNormBackward norm) {
  __shared__ float scratch[2][2 * kWarp];  // in turn: a slow warp may still read the last row's
  Packed<T, kCount> weight[kParts];
  float grad_weight[kParts][kCount] = {}, grad_bias[kParts][kCount] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    if (const int at = column<kCount>(part); at < norm.hidden)
      weight[part] = load_packed<kCount>(static_cast<const T*>(norm.weight) + at);
  const auto w = [&](int part, int i) { return static_cast<float>(weight[part].values[i]); };
  Row<T, kCount, kParts> next;
  next.read(norm, blockIdx.x);
  int turn = 0;
  for (std::int64_t number = blockIdx.x; number < norm.rows; number += gridDim.x, turn ^= 1) {
    const Row<T, kCount, kParts> row = next;
    if (number + gridDim.x < norm.rows) next.read(norm, number + gridDim.x);
    float means[2] = {};  // of g and of g * n
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (column<kCount>(part) >= norm.hidden) continue;
      for (int i = 0; i < kCount; ++i) {
        const float n = row.n(part, i), g = row.g(part, i) * w(part, i);
        grad_weight[part][i] += row.g(part, i) * n;
        grad_bias[part][i] += row.g(part, i);
        means[0] += g;
        means[1] += g * n;
      }
    }
    block_sums(means, scratch[turn]);
    for (float& mean : means) mean /= norm.hidden;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      float grad_x[kCount];
      for (int i = 0; i < kCount; ++i) {
        const float g = row.g(part, i) * w(part, i);
        grad_x[i] = row.rstd * (g - means[0] - row.n(part, i) * means[1]);
      }
      store(grad_x, static_cast<T*>(norm.grad_x) + number * norm.hidden + at);
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int at = column<kCount>(part);
    if (at >= norm.hidden) continue;
    float* to = norm.partial + static_cast<std::int64_t>(blockIdx.x) * norm.hidden + at;
    for (int i = 0; i < kCount; ++i) to[i] = grad_weight[part][i];
    if (!norm.grad_bias) continue;
    to += static_cast<std::int64_t>(gridDim.x) * norm.hidden;
    for (int i = 0; i < kCount; ++i) to[i] = grad_bias[part][i];
  }
}

}  // namespace

cudaError_t launch(const LayerNormForward& norm, cudaStream_t stream) {
  const bool aligned =
      is_aligned(norm.x) && is_aligned(norm.weight) && is_aligned(norm.bias) && is_aligned(norm.out);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      // Two vectors in flight per thread, unless the row is short.
      return with_parts<count>(norm.hidden, norm.hidden >= 1024 ? 2 : 1, [&](auto parts) {
        const int threads = threads_for(norm.hidden, count * parts);
        forward<T, count, parts><<<static_cast<unsigned>(norm.rows), threads, 0, stream>>>(norm);
        return cudaGetLastError();
      });
    });
  });
  return status;
}

cudaError_t launch(const LayerNormBackward& norm, cudaStream_t stream) {
  const bool aligned =
      is_aligned(norm.x) && is_aligned(norm.weight) && is_aligned(norm.grad_out) && is_aligned(norm.grad_x);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      return with_parts<count>(norm.hidden, 1, [&](auto parts) {
        const int threads = threads_for(norm.hidden, count * parts);
        backward<T, count, parts><<<norm.blocks, threads, 0, stream>>>(norm);
        launch_add_parts<T>(norm.partial, norm.blocks, norm.hidden, norm.grad_weight, norm.grad_bias, stream);
        return cudaGetLastError();
      });
    });
  });
  return status;
}

}  // namespace snug::ops
