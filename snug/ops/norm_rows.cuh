// A block per row: sums over it, how its columns are dealt to threads, and the sum of what blocks kept of the
// weight's gradient. For the norms' kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "snug/ops/kernel_vector.cuh"

namespace snug::ops {

constexpr int kWarp = 32;
constexpr int kForwardThreads = 1024, kBackwardThreads = 512;  // at most, of a block
constexpr int kLongRow = 1024;  // from here on a thread takes several vectors, for more loads in flight

// Every thread gets the sums of all. `scratch`, a warp's width per value, is not used again before the next
// __syncthreads().
template <int kValues>
__device__ inline void block_sums(float (&values)[kValues], float* scratch) {
  const int warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      values[i] += __shfl_xor_sync(~0u, values[i], offset);
    if (lane == 0) scratch[i * kWarp + threadIdx.x / kWarp] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    values[i] = lane < warps ? scratch[i * kWarp + lane] : 0;
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      values[i] += __shfl_xor_sync(~0u, values[i], offset);
  }
}

__device__ inline float block_sum(float value, float* scratch) {
  float values[] = {value};
  block_sums(values, scratch);
  return values[0];
}

// The first column of a thread's part, kCount columns wide.
template <int kCount>
__device__ inline int column(int part) {
  return (part * blockDim.x + threadIdx.x) * kCount;
}

// A thread's share of a row, as it lies in memory: half as many registers as in fp32. Zero beyond the row.
template <class T, int kCount, int kParts>
class Share {
 public:
  __device__ void load(const void* row, int hidden) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      parts_[part] = at < hidden ? load_packed<kCount>(static_cast<const T*>(row) + at) : Packed<T, kCount>{};
    }
  }
  // Rounded to T.
  __device__ void add(const void* row, int hidden) {
    Share other;
    other.load(row, hidden);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < kCount; ++i)
        parts_[part].values[i] = static_cast<T>((*this)(part, i) + other(part, i));
  }
  __device__ void store(T* row, int hidden) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int at = column<kCount>(part);
      if (at < hidden) *reinterpret_cast<Packed<T, kCount>*>(row + at) = parts_[part];
    }
  }
  __device__ float operator()(int part, int i) const {
    return static_cast<float>(parts_[part].values[i]);
  }

 private:
  Packed<T, kCount> parts_[kParts];
};

// One of `rows`, each `hidden` wide.
template <class T>
__device__ inline const T* row_of(const void* rows, std::int64_t number, int hidden) {
  return static_cast<const T*>(rows) + number * hidden;
}

// A sector's width of columns per block, so that there are blocks for all processors; a warp's width of
// threads per column shares the parts. Always in the same order. The parts of a second gradient follow those
// of the first.
constexpr int kPartColumns = 8;

template <class T>
__global__ void __launch_bounds__(kPartColumns* kWarp)
    add_parts(const float* partial, int parts, int hidden, T* grad, T* second) {
  __shared__ float sums[kWarp][kPartColumns];
  const int column = blockIdx.x * kPartColumns + threadIdx.x;
  if (blockIdx.y > 0) {
    partial += static_cast<std::int64_t>(parts) * hidden;
    grad = second;
  }
  float sum = 0;
  if (column < hidden) {
#pragma unroll 8
    for (int part = threadIdx.y; part < parts; part += kWarp)
      sum += partial[static_cast<std::int64_t>(part) * hidden + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  for (int half = kWarp / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.y) < half)
      sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
  }
  if (threadIdx.y == 0 && column < hidden) grad[column] = static_cast<T>(sums[0][threadIdx.x]);
}

template <class T>
void launch_add_parts(const float* partial, int parts, int hidden, void* grad, void* second,
                      cudaStream_t stream) {
  const dim3 blocks((hidden + kPartColumns - 1) / kPartColumns, second ? 2 : 1);
  add_parts<<<blocks, dim3(kPartColumns, kWarp), 0, stream>>>(partial, parts, hidden, static_cast<T*>(grad),
                                                              static_cast<T*>(second));
}

inline int threads_for(int hidden, int per_thread) {
  return (hidden + per_thread * kWarp - 1) / (per_thread * kWarp) * kWarp;
}

// Calls use(integral constant) with the number of parts that a thread takes, `least` or more, so that at most
// `most_threads` hold a row. Of the widest rows a thread takes 64 elements, far more than its registers hold:
// 512 threads take the 32,768 that norm_launch.h allows.
template <int kCount, class Use>
cudaError_t with_parts(int hidden, int least, int most_threads, Use use) {
  const auto fits = [&](int parts) {
    return parts >= least && threads_for(hidden, kCount * parts) <= most_threads;
  };
  if (fits(1)) return use(std::integral_constant<int, 1>{});
  if (fits(2)) return use(std::integral_constant<int, 2>{});
  if (fits(4)) return use(std::integral_constant<int, 4>{});
  if (fits(8)) return use(std::integral_constant<int, 8>{});
  if constexpr (kCount < 8)
    if (fits(64 / kCount)) return use(std::integral_constant<int, 64 / kCount>{});
  return cudaErrorInvalidValue;
}

// Calls use(integral constant) with the number of elements loaded at once.
template <class T, class Use>
cudaError_t with_count(int hidden, bool aligned, Use use) {
  constexpr int kWide = 16 / sizeof(T);
  if (aligned && hidden % kWide == 0) return use(std::integral_constant<int, kWide>{});
  return use(std::integral_constant<int, 1>{});
}

}  // namespace snug::ops
