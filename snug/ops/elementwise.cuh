// Element by element, sixteen bytes per thread; what does not fill a vector goes one by one.
//
//   struct Forward : SwigluForward {  // has count and dtype
//     template <class T, int kCount>
//     __device__ void run_at(std::int64_t at) const;  // for kCount elements
//   };
//   return launch_elements(Forward{swiglu}, {swiglu.gate, swiglu.up, swiglu.out}, stream);
#pragma once

#include <cstdint>
#include <initializer_list>

#include "snug/ops/kernel_vector.cuh"

namespace snug::ops {

constexpr int kElementThreads = 256;

template <class T, int kCount, class Elements>
__global__ void __launch_bounds__(kElementThreads) run_elements(Elements elements) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
  const std::int64_t at = thread * kCount;
  if (at + kCount <= elements.count) return elements.template run_at<T, kCount>(at);
  for (std::int64_t i = at; i < elements.count; ++i) elements.template run_at<T, 1>(i);
}

// `tensors` are all that it reads and writes: if one is not aligned, every element goes alone.
template <class Elements>
cudaError_t launch_elements(const Elements& elements, std::initializer_list<const void*> tensors,
                            cudaStream_t stream) {
  bool aligned = true;
  for (const void* tensor : tensors) aligned &= is_aligned(tensor);
  with_type(elements.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const auto blocks = [&](int per_thread) {
      const std::int64_t per_block = static_cast<std::int64_t>(kElementThreads) * per_thread;
      return static_cast<unsigned>((elements.count + per_block - 1) / per_block);
    };
    if (aligned)
      run_elements<T, kWide><<<blocks(kWide), kElementThreads, 0, stream>>>(elements);
    else
      run_elements<T, 1><<<blocks(1), kElementThreads, 0, stream>>>(elements);
  });
  return cudaGetLastError();
}

}  // namespace snug::ops
