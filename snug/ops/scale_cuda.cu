// Reads and writes nothing where the factor is 1.
#include "snug/ops/elementwise.cuh"
#include "snug/ops/scale_kernel.h"

namespace snug::ops {
namespace {

struct Scale : ScaleInPlace {
  template <class T, int kCount>
  __device__ void run_at(std::int64_t at) const {
    const float by = *factor;
    if (by == 1) return;
    float values[kCount];
    load(static_cast<const T*>(x) + at, values);
    for (int i = 0; i < kCount; ++i) values[i] *= by;
    store(values, static_cast<T*>(x) + at);
  }
};

}  // namespace

cudaError_t launch(const ScaleInPlace& scale, cudaStream_t stream) {
  return launch_elements(Scale{scale}, {scale.x}, stream);
}

}  // namespace snug::ops
