#include "snug/ops/elementwise.cuh"
#include "snug/ops/swiglu_kernel.h"

namespace snug::ops {
namespace {

__device__ float sigmoid(float value) {
  return 1 / (1 + expf(-value));
}

struct Forward : SwigluForward {
  template <class T, int kCount>
  __device__ void run_at(std::int64_t at) const {
    float values[kCount], factors[kCount];
    load(static_cast<const T*>(gate) + at, values);
    load(static_cast<const T*>(up) + at, factors);
    for (int i = 0; i < kCount; ++i) values[i] *= sigmoid(values[i]) * factors[i];
    store(values, static_cast<T*>(out) + at);
  }
};

struct Backward : SwigluBackward {
  template <class T, int kCount>
  __device__ void run_at(std::int64_t at) const {
    float grads[kCount], gates[kCount], ups[kCount];
    load(static_cast<const T*>(grad_out) + at, grads);
    load(static_cast<const T*>(gate) + at, gates);
    load(static_cast<const T*>(up) + at, ups);
    for (int i = 0; i < kCount; ++i) {
      const float s = sigmoid(gates[i]);
      ups[i] *= grads[i] * s * (1 + gates[i] * (1 - s));
      gates[i] *= s * grads[i];
    }
    store(ups, static_cast<T*>(grad_gate) + at);
    store(gates, static_cast<T*>(grad_up) + at);
  }
};

}  // namespace

cudaError_t launch(const SwigluForward& swiglu, cudaStream_t stream) {
  return launch_elements(Forward{swiglu}, {swiglu.gate, swiglu.up, swiglu.out}, stream);
}

cudaError_t launch(const SwigluBackward& swiglu, cudaStream_t stream) {
  return launch_elements(Backward{swiglu},
                         {swiglu.grad_out, swiglu.gate, swiglu.up, swiglu.grad_gate, swiglu.grad_up}, stream);
}

}  // namespace snug::ops
