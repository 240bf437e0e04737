// A few lanes of a warp per head of a token: each holds vectors of the head's first half and their partners
// of the second, so that rope needs nobody else's. In the backward a block takes many rows and keeps its part
// of the weight's gradient; a second kernel adds the parts, always in the same order.
#include "snug/ops/norm_rope_kernel.h"
#include "snug/ops/norm_rows.cuh"

namespace snug::ops {
namespace {

constexpr int kThreads = 256;

// Which row and which columns of its halves a thread has. kLanes hold a row, kParts vectors of each half.
template <int kWidth, int kVectors, int kRowLanes>
struct Dealt {
  static constexpr int kCount = kWidth, kParts = kVectors, kLanes = kRowLanes;
  static constexpr int kRows = kThreads / kLanes;  // of a block at a time

  // Fewer than 2^31 rows, so that 32 bits suffice where it is divided.
  template <class Norm>
  static __device__ std::int64_t token(const Norm& norm, std::int64_t row) {
    return static_cast<unsigned>(row) / static_cast<unsigned>(norm.heads) %
           static_cast<unsigned>(norm.tokens);
  }
  static __device__ int lane() { return threadIdx.x % kLanes; }
  static __device__ int row() { return threadIdx.x / kLanes; }
  static __device__ int column(int part) { return (part * kLanes + lane()) * kCount; }

  static __device__ float sum(float value) {
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      value += __shfl_xor_sync(~0u, value, offset, kLanes);
    return value;
  }
};

// Two halves of a row, in fp32; zero beyond the half.
template <class D>
struct Halves {
  static constexpr int kCount = D::kCount, kParts = D::kParts;
  float first[kParts][kCount] = {}, second[kParts][kCount] = {};

  template <class T>
  __device__ void load_from(const void* row, int half, bool is_there = true) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = D::column(part);
      if (at >= half || !is_there) continue;
      load(static_cast<const T*>(row) + at, first[part]);
      load(static_cast<const T*>(row) + half + at, second[part]);
    }
  }
  template <class T>
  __device__ void store_to(void* row, int half) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = D::column(part);
      if (at >= half) continue;
      store(first[part], static_cast<T*>(row) + at);
      store(second[part], static_cast<T*>(row) + half + at);
    }
  }
  // By the angles of a token, or the other way.
  template <class T, bool kInverse>
  __device__ void rotate(const void* cosines, const void* sines, std::int64_t token, int half) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = D::column(part);
      if (at >= half) continue;
      float cos[kCount], sin[kCount];
      load(static_cast<const T*>(cosines) + token * half + at, cos);
      load(static_cast<const T*>(sines) + token * half + at, sin);
      for (int i = 0; i < kCount; ++i) {
        const float s = kInverse ? -sin[i] : sin[i], a = first[part][i], b = second[part][i];
        first[part][i] = a * cos[i] - b * s;
        second[part][i] = b * cos[i] + a * s;
      }
    }
  }
};

template <class T, class D>
__global__ void __launch_bounds__(kThreads) forward(NormRopeForward norm) {
  constexpr int kCount = D::kCount, kParts = D::kParts;
  using Row = Halves<D>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * D::kRows + D::row();
  const bool is_there = row < norm.rows;
  const int half = norm.head_dim / 2;
  Row x, weight;
  x.template load_from<T>(static_cast<const T*>(norm.x) + row * norm.head_dim, half, is_there);
  weight.template load_from<T>(norm.weight, half);
  float squares = 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    for (int i = 0; i < kCount; ++i)
      squares += x.first[part][i] * x.first[part][i] + x.second[part][i] * x.second[part][i];
  const float rstd = 1 / sqrtf(D::sum(squares) / norm.head_dim + norm.eps);
  if (!is_there) return;
  if (D::lane() == 0) norm.rstd[row] = rstd;
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    for (int i = 0; i < kCount; ++i) {
      x.first[part][i] *= rstd * weight.first[part][i];
      x.second[part][i] *= rstd * weight.second[part][i];
    }
  x.template rotate<T, false>(norm.cos, norm.sin, D::token(norm, row), half);
  x.template store_to<T>(static_cast<T*>(norm.out) + row * norm.head_dim, half);
}

// With g = grad_out, rotated back, * weight and n = x * rstd: grad_x = rstd * (g - n * mean(g * n)).
template <class T, class D>
__global__ void __launch_bounds__(kThreads) backward(NormRopeBackward norm) {
  constexpr int kCount = D::kCount, kParts = D::kParts;
  using Row = Halves<D>;
  const int half = norm.head_dim / 2;
  Row weight, grad_weight;
  weight.template load_from<T>(norm.weight, half);
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * D::kRows; first < norm.rows;
       first += static_cast<std::int64_t>(gridDim.x) * D::kRows) {
    const std::int64_t row = first + D::row();
    const bool is_there = row < norm.rows;
    Row grad, x;
    grad.template load_from<T>(static_cast<const T*>(norm.grad_out) + row * norm.head_dim, half, is_there);
    x.template load_from<T>(static_cast<const T*>(norm.x) + row * norm.head_dim, half, is_there);
    const float rstd = is_there ? norm.rstd[row] : 0;
    grad.template rotate<T, true>(norm.cos, norm.sin, D::token(norm, row), half);
    float dot = 0;
    const auto add = [&](float& g, float& n, float w, float& of_weight) {
      n *= rstd;
      of_weight += g * n;
      g *= w;
      dot += g * n;
    };
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < kCount; ++i) {
        add(grad.first[part][i], x.first[part][i], weight.first[part][i], grad_weight.first[part][i]);
        add(grad.second[part][i], x.second[part][i], weight.second[part][i], grad_weight.second[part][i]);
      }
    const float mean = D::sum(dot) / norm.head_dim;
    if (!is_there) continue;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < kCount; ++i) {
        x.first[part][i] = rstd * (grad.first[part][i] - x.first[part][i] * mean);
        x.second[part][i] = rstd * (grad.second[part][i] - x.second[part][i] * mean);
      }
    x.template store_to<T>(static_cast<T*>(norm.grad_x) + row * norm.head_dim, half);
  }

  __shared__ float sums[D::kRows][2 * D::kLanes * kParts * kCount];
#pragma unroll
  for (int part = 0; part < kParts; ++part)
    for (int i = 0; i < kCount; ++i) {
      const int at = D::column(part) + i;
      if (at >= half) continue;
      sums[D::row()][at] = grad_weight.first[part][i];
      sums[D::row()][half + at] = grad_weight.second[part][i];
    }
  __syncthreads();
  for (int at = threadIdx.x; at < norm.head_dim; at += kThreads) {
    float all = 0;
    for (int row = 0; row < D::kRows; ++row) all += sums[row][at];
    norm.partial[static_cast<std::int64_t>(blockIdx.x) * norm.head_dim + at] = all;
  }
}

// Calls use(Dealt) with the one for these rows.
template <class T, class Use>
cudaError_t dealt(int head_dim, bool aligned, Use use) {
  constexpr int kWide = 16 / sizeof(T);
  const int half = head_dim / 2;
  if (!aligned || half % kWide != 0) return use(Dealt<1, 8, 32>());
  if (half <= 4 * kWide) return use(Dealt<kWide, 1, 4>());
  if (half <= 8 * kWide) return use(Dealt<kWide, 1, 8>());
  if (half <= 16 * kWide) return use(Dealt<kWide, 1, 16>());
  if constexpr (kWide == 4)
    if (half > 32 * kWide) return use(Dealt<kWide, 2, 32>());
  return use(Dealt<kWide, 1, 32>());
}

}  // namespace

cudaError_t launch(const NormRopeForward& norm, cudaStream_t stream) {
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.weight) && is_aligned(norm.cos) &&
                       is_aligned(norm.sin) && is_aligned(norm.out);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = dealt<T>(norm.head_dim, aligned, [&](auto shape) {
      using D = decltype(shape);
      const auto blocks = static_cast<unsigned>((norm.rows + D::kRows - 1) / D::kRows);
      forward<T, D><<<blocks, kThreads, 0, stream>>>(norm);
      return cudaGetLastError();
    });
  });
  return status;
}

cudaError_t launch(const NormRopeBackward& norm, cudaStream_t stream) {
  const bool aligned = is_aligned(norm.x) && is_aligned(norm.weight) && is_aligned(norm.cos) &&
                       is_aligned(norm.sin) && is_aligned(norm.grad_out) && is_aligned(norm.grad_x);
  cudaError_t status = cudaSuccess;
  with_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    status = dealt<T>(norm.head_dim, aligned, [&](auto shape) {
      backward<T, decltype(shape)><<<norm.blocks, kThreads, 0, stream>>>(norm);
      launch_add_parts<T>(norm.partial, norm.blocks, norm.head_dim, norm.grad_weight, nullptr, stream);
      return cudaGetLastError();
    });
  });
  return status;
}

}  // namespace snug::ops
