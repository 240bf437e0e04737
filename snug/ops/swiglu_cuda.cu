// Element by element, sixteen bytes per thread; what does not fill a vector goes one by one.
#include "snug/ops/kernel_vector.cuh"
#include "snug/ops/swiglu_kernel.h"

namespace snug::ops {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float value) {
  return 1 / (1 + expf(-value));
}

template <class T, int kCount>
__device__ void run_at(const SwigluForward& swiglu, std::int64_t at) {
  float gate[kCount], up[kCount];
  load(static_cast<const T*>(swiglu.gate) + at, gate);
  load(static_cast<const T*>(swiglu.up) + at, up);
  for (int i = 0; i < kCount; ++i) gate[i] *= sigmoid(gate[i]) * up[i];
  store(gate, static_cast<T*>(swiglu.out) + at);
}

template <class T, int kCount>
__device__ void run_at(const SwigluBackward& swiglu, std::int64_t at) {
  float grad[kCount], gate[kCount], up[kCount];
  load(static_cast<const T*>(swiglu.grad_out) + at, grad);
  load(static_cast<const T*>(swiglu.gate) + at, gate);
  load(static_cast<const T*>(swiglu.up) + at, up);
  for (int i = 0; i < kCount; ++i) {
    const float s = sigmoid(gate[i]);
    up[i] *= grad[i] * s * (1 + gate[i] * (1 - s));
    gate[i] *= s * grad[i];
  }
  store(up, static_cast<T*>(swiglu.grad_gate) + at);
  store(gate, static_cast<T*>(swiglu.grad_up) + at);
}

template <class T, int kCount, class Arguments>
__global__ void __launch_bounds__(kThreads) run(Arguments arguments) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t at = thread * kCount;
  if (at + kCount <= arguments.count) return run_at<T, kCount>(arguments, at);
  for (std::int64_t i = at; i < arguments.count; ++i) run_at<T, 1>(arguments, i);
}

template <class Arguments>
cudaError_t launch_any(const Arguments& arguments, bool aligned, cudaStream_t stream) {
  with_type(arguments.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    const auto blocks = [&](int per_thread) {
      const std::int64_t per_block = static_cast<std::int64_t>(kThreads) * per_thread;
      return static_cast<unsigned>((arguments.count + per_block - 1) / per_block);
    };
    if (aligned)
      run<T, kWide><<<blocks(kWide), kThreads, 0, stream>>>(arguments);
    else
      run<T, 1><<<blocks(1), kThreads, 0, stream>>>(arguments);
  });
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch(const SwigluForward& swiglu, cudaStream_t stream) {
  return launch_any(swiglu, is_aligned(swiglu.gate) && is_aligned(swiglu.up) && is_aligned(swiglu.out),
                    stream);
}

cudaError_t launch(const SwigluBackward& swiglu, cudaStream_t stream) {
  const bool aligned = is_aligned(swiglu.grad_out) && is_aligned(swiglu.gate) && is_aligned(swiglu.up) &&
                       is_aligned(swiglu.grad_gate) && is_aligned(swiglu.grad_up);
  return launch_any(swiglu, aligned, stream);
}

}  // namespace snug::ops
