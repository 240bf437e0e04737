#include <cstdint>

namespace {

__global__ void scale(float* data, float factor, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

}  // namespace

void launch_raw_scale(float* data, float factor, std::int64_t count, void* stream) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  scale<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
          static_cast<cudaStream_t>(stream)>>>(data, factor, count);
}
