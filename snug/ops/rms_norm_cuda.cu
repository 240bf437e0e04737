// One block per row, which stays in registers between the sum over it and what is made of it: every byte is
// read once and written once. In the backward a block takes many rows and keeps its part of the weight's
// gradient; a second kernel adds the parts, always in the same order.
#include "snug/ops/norm_rows.cuh"
#include "snug/ops/rms_norm_kernel.h"

namespace snug::ops {
namespace {

template <class T, int kCount, int kParts, bool kAdds>
__global__ void __launch_bounds__(kForwardThreads) forward(RmsNormForward norm) {
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
__global__ void __maxnreg__(kParts == 1   ? 48
                            : kParts == 2 ? 80
                                          : 128) backward(RmsNormBackward norm) {
  __shared__ float scratch[2][kWarp];  // in turn: a slow warp may still read the last row's
  Share<T, kCount, kParts> weight, grad, x, by_sum;
  float grad_weight[kParts][kCount] = {};
  weight.load(norm.weight, norm.hidden);
  int turn = 0;
  for (std::int64_t number = blockIdx.x; number < norm.rows; number += gridDim.x, turn ^= 1) {
    grad.load(row_of<T>(norm.grad_out, number, norm.hidden), norm.hidden);
    x.load(row_of<T>(norm.x, number, norm.hidden), norm.hidden);
    if constexpr (kAdds) by_sum.load(row_of<T>(norm.grad_sum, number, norm.hidden), norm.hidden);
    const float rstd = norm.rstd[number];
    float dot = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < kCount; ++i) {
        const float n = x(part, i) * rstd;
        grad_weight[part][i] += grad(part, i) * n;
        dot += grad(part, i) * weight(part, i) * n;
      }
    const float mean = block_sum(dot, scratch[turn]) / norm.hidden;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at >= norm.hidden) continue;
      float grad_x[kCount];
      for (int i = 0; i < kCount; ++i) {
        grad_x[i] = rstd * (grad(part, i) * weight(part, i) - x(part, i) * rstd * mean);
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
      const int least = !norm.residual && norm.hidden >= kLongRow ? 2 : 1;
      return with_parts<count>(norm.hidden, least, kForwardThreads, [&](auto parts) {
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
      const int least = !norm.grad_sum && norm.hidden >= kLongRow ? 2 : 1;
      return with_parts<count>(norm.hidden, least, kBackwardThreads, [&](auto parts) {
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
