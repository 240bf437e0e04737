// One block per row, which stays in registers between the sums over it and what is made of it. In the
// backward a block takes many rows and keeps its part of the gradients of weight and bias; a second kernel
// adds the parts, always in the same order.
#include "snug/ops/layer_norm_kernel.h"
#include "snug/ops/norm_rows.cuh"

namespace snug::ops {
namespace {

template <class T, int kCount, int kParts, bool kAdds>
__global__ void __launch_bounds__(kForwardThreads) forward(LayerNormForward norm) {
  __shared__ float scratch[2][kWarp];
  Share<T, kCount, kParts> x;
  x.load(row_of<T>(norm.x, blockIdx.x, norm.hidden), norm.hidden);
  if constexpr (kAdds) {
    x.add(row_of<T>(norm.residual, blockIdx.x, norm.hidden), norm.hidden);
    x.store(static_cast<T*>(norm.sum) + static_cast<std::int64_t>(blockIdx.x) * norm.hidden, norm.hidden);
  }
  float sum = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    for (int i = 0; i < kCount; ++i) sum += x(part, i);
  const float mean = block_sum(sum, scratch[0]) / norm.hidden;
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (column<kCount>(part) >= norm.hidden) continue;
    for (int i = 0; i < kCount; ++i) squares += (x(part, i) - mean) * (x(part, i) - mean);
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
    float weight[kCount], bias[kCount] = {}, out[kCount];
    load(static_cast<const T*>(norm.weight) + at, weight);
    if (norm.bias) load(static_cast<const T*>(norm.bias) + at, bias);
    for (int i = 0; i < kCount; ++i) out[i] = (x(part, i) - mean) * rstd * weight[i] + bias[i];
    store(out, static_cast<T*>(norm.out) + static_cast<std::int64_t>(blockIdx.x) * norm.hidden + at);
  }
}

// With g = grad_out * weight and n = (x - mean) * rstd: grad_x = rstd * (g - mean(g) - n * mean(g * n)) +
// grad_sum.
template <class T, int kCount, int kParts, bool kAdds>
__global__ void __maxnreg__(kParts <= 2 ? 96 : 128) backward(LayerNormBackward norm) {
  __shared__ float scratch[2][2 * kWarp];  // in turn: a slow warp may still read the last row's
  Share<T, kCount, kParts> weight, grad, x, by_sum;
  float grad_weight[kParts][kCount] = {}, grad_bias[kParts][kCount] = {};
  weight.load(norm.weight, norm.hidden);
  int turn = 0;
  for (std::int64_t number = blockIdx.x; number < norm.rows; number += gridDim.x, turn ^= 1) {
    grad.load(row_of<T>(norm.grad_out, number, norm.hidden), norm.hidden);
    x.load(row_of<T>(norm.x, number, norm.hidden), norm.hidden);
    if constexpr (kAdds) by_sum.load(row_of<T>(norm.grad_sum, number, norm.hidden), norm.hidden);
    const float mean = norm.mean[number], rstd = norm.rstd[number];
    float means[2] = {};  // of g and of g * n
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < kCount; ++i) {
        const float n = (x(part, i) - mean) * rstd, g = grad(part, i) * weight(part, i);
        grad_weight[part][i] += grad(part, i) * n;
        grad_bias[part][i] += grad(part, i);
        means[0] += g;
        means[1] += g * n;
      }
    block_sums(means, scratch[turn]);
    for (float& of_row : means) of_row /= norm.hidden;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      float grad_x[kCount];
      for (int i = 0; i < kCount; ++i) {
        const float n = (x(part, i) - mean) * rstd, g = grad(part, i) * weight(part, i);
        grad_x[i] = rstd * (g - means[0] - n * means[1]);
        if constexpr (kAdds) grad_x[i] += by_sum(part, i);
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
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.residual) && is_aligned(norm.sum) &&
                       is_aligned(norm.weight) && is_aligned(norm.bias) && is_aligned(norm.out);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      return with_parts<count>(norm.hidden, norm.hidden >= kLongRow ? 4 : 1, kForwardThreads,
                               [&](auto parts) {
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

cudaError_t launch(const LayerNormBackward& norm, cudaStream_t stream) {
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.grad_sum) && is_aligned(norm.weight) &&
                       is_aligned(norm.grad_out) && is_aligned(norm.grad_x);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = with_count<T>(norm.hidden, aligned, [&](auto count) {
      return with_parts<count>(
          norm.hidden, norm.hidden >= kLongRow ? 2 : 1, kBackwardThreads, [&](auto parts) {
            const int threads = threads_for(norm.hidden, count * parts);
            if (norm.grad_sum)
              backward<T, count, parts, true><<<norm.blocks, threads, 0, stream>>>(norm);
            else
              backward<T, count, parts, false><<<norm.blocks, threads, 0, stream>>>(norm);
            launch_add_parts<T>(norm.partial, norm.blocks, norm.hidden, norm.grad_weight, norm.grad_bias,
                                stream);
            return cudaGetLastError();
          });
    });
  });
  return status;
}

}  // namespace snug::ops
