// Each block adds the rows of one strip, its threads every kDeep-th; then the strips are added, always in the
// same order.
#include "snug/ops/norm_rows.cuh"
#include "snug/ops/sum_rows_kernel.h"
#include "snug/ops/sum_rows_strips.h"

namespace snug::ops {
namespace {

template <class T, int kCount, int kDeep>
__global__ void __launch_bounds__(kStripColumns / kCount * kDeep) add_strip(SumRows sum) {
  __shared__ float sums[kDeep][kStripColumns];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kStripColumns;
  const std::int64_t first = sum.rows * blockIdx.y / sum.strips;
  const std::int64_t last = sum.rows * (blockIdx.y + 1) / sum.strips;
  const int place = threadIdx.x * kCount;
  float mine[kCount] = {};
  if (begin + place < sum.columns) {
    const T* const from = static_cast<const T*>(sum.matrix) + begin + place;
#pragma unroll 4
    for (std::int64_t row = first + threadIdx.y; row < last; row += kDeep) {
      float values[kCount];
      load(from + row * sum.row_stride, values);
#pragma unroll
      for (int i = 0; i < kCount; ++i) mine[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[threadIdx.y][place + i] = mine[i];
  __syncthreads();
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < kStripColumns; i += blockDim.x * kDeep) {
    if (begin + i >= sum.columns) break;
    float all = 0;
#pragma unroll
    for (int row = 0; row < kDeep; ++row) all += sums[row][i];
    sum.partial[blockIdx.y * sum.columns + begin + i] = all;
  }
}

}  // namespace

cudaError_t launch(const SumRows& sum, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((sum.columns + kStripColumns - 1) / kStripColumns),
                    static_cast<unsigned>(sum.strips));
  with_type(sum.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T), kDeep = 8, kDeepAlone = 4;
    if (is_aligned(sum.matrix) && sum.columns % kWide == 0 && sum.row_stride % kWide == 0)
      add_strip<T, kWide, kDeep><<<blocks, dim3(kStripColumns / kWide, kDeep), 0, stream>>>(sum);
    else
      add_strip<T, 1, kDeepAlone><<<blocks, dim3(kStripColumns, kDeepAlone), 0, stream>>>(sum);
  });
  with_type(sum.sum_dtype, [&](auto type) {
    launch_add_parts<decltype(type)>(sum.partial, sum.strips, static_cast<int>(sum.columns), sum.sum, nullptr,
                                     stream);
  });
  return cudaGetLastError();
}

}  // namespace snug::ops
