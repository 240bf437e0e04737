// A thread takes a vector of the first half of a head and its partner of the second.
#include "snug/ops/kernel_vector.cuh"
#include "snug/ops/rope_kernel.h"

namespace snug::ops {
namespace {

constexpr int kThreads = 256;

// Index: 32 bits where they suffice, since it is divided.
template <class T, int kCount, class Index>
__global__ void __launch_bounds__(kThreads) rotate(Rope rope) {
  const Index vectors = rope.half / kCount;
  Index place = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (place >= static_cast<Index>(rope.batch * rope.tokens * rope.heads) * vectors) return;
  const int at = static_cast<int>(place % vectors) * kCount;
  place /= vectors;
  const std::int64_t row = static_cast<std::int64_t>(place) * 2 * rope.half;  // of out
  const Index head = place % static_cast<Index>(rope.heads);
  place /= static_cast<Index>(rope.heads);
  const Index token = place % static_cast<Index>(rope.tokens),
              batch = place / static_cast<Index>(rope.tokens);

  const T* from = static_cast<const T*>(rope.x) + static_cast<std::int64_t>(batch) * rope.batch_stride +
                  static_cast<std::int64_t>(head) * rope.head_stride +
                  static_cast<std::int64_t>(token) * rope.token_stride + at;
  const std::int64_t angle = static_cast<std::int64_t>(token) * rope.half + at;
  float first[kCount], second[kCount], cos[kCount], sin[kCount];
  load(from, first);
  load(from + rope.half, second);
  load(static_cast<const T*>(rope.cos) + angle, cos);
  load(static_cast<const T*>(rope.sin) + angle, sin);
  for (int i = 0; i < kCount; ++i) {
    const float s = rope.inverse ? -sin[i] : sin[i];
    const float a = first[i], b = second[i];
    first[i] = a * cos[i] - b * s;
    second[i] = b * cos[i] + a * s;
  }
  T* to = static_cast<T*>(rope.out) + row + at;
  store(first, to);
  store(second, to + rope.half);
}

}  // namespace

cudaError_t launch(const Rope& rope, cudaStream_t stream) {
  with_type(rope.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const std::int64_t rows = rope.batch * rope.heads * rope.tokens;
    const auto blocks = [&](int count) {
      return static_cast<unsigned>((rows * (rope.half / count) + kThreads - 1) / kThreads);
    };
    const bool wide = rope.half % kWide == 0 && rope.batch_stride % kWide == 0 &&
                      rope.head_stride % kWide == 0 && rope.token_stride % kWide == 0 && is_aligned(rope.x) &&
                      is_aligned(rope.cos) && is_aligned(rope.sin) && is_aligned(rope.out);
    const bool small = rows * rope.half < (std::int64_t{1} << 31);
    if (wide && small)
      rotate<T, kWide, std::uint32_t><<<blocks(kWide), kThreads, 0, stream>>>(rope);
    else
      rotate<T, 1, std::uint64_t><<<blocks(1), kThreads, 0, stream>>>(rope);
  });
  return cudaGetLastError();
}

}  // namespace snug::ops
