// Sixteen bytes at a time, computed in fp32. For kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Packed {
  T values[kCount];
};

template <int kCount, class T>
__device__ inline Packed<T, kCount> load_packed(const T* from) {
  return *reinterpret_cast<const Packed<T, kCount>*>(from);
}

template <class T, int kCount>
__device__ inline void load(const T* from, float (&to)[kCount]) {
  const auto packed = load_packed<kCount>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<float>(packed.values[i]);
}

template <class T, int kCount>
__device__ inline void store(const float (&from)[kCount], T* to) {
  Packed<T, kCount> packed;
#pragma unroll
  for (int i = 0; i < kCount; ++i) packed.values[i] = static_cast<T>(from[i]);
  *reinterpret_cast<Packed<T, kCount>*>(to) = packed;
}

// What becomes of a value that is stored and loaded again.
template <class T>
__device__ inline float rounded(float value) {
  return static_cast<float>(static_cast<T>(value));
}

// Calls use(T{}) with the type that a dtype stands for.
template <class Use>
void with_type(KernelDtype dtype, Use use) {
  switch (dtype) {
    case KernelDtype::Float:
      return use(float{});
    case KernelDtype::BFloat16:
      return use(__nv_bfloat16{});
    case KernelDtype::Half:
      return use(__half{});
  }
}

}  // namespace snug::ops
