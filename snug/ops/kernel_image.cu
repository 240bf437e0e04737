// Asks the CUDA runtime for the attributes of a kernel of ours: the question fails where no image fits the
// GPU.
#include <cuda_runtime.h>

#include "snug/ops/kernel_image.h"

namespace snug::ops {
namespace {

__global__ void probe() {}

// Neither copied nor moved: it restores the device that was current when it was made.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&previous_);
    status_ = cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  cudaError_t status() const { return status_; }

 private:
  int previous_ = 0;
  cudaError_t status_;
};

}  // namespace

std::string missing_kernel_image(int device) {
  DeviceScope scope(device);
  cudaFuncAttributes attributes;
  cudaError_t status = scope.status();
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, probe);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // the error is reported here, the next CUDA call starts clean

  std::string gpu = "GPU " + std::to_string(device);
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction) {
    return gpu + " cannot be used: " + cudaGetErrorString(status);
  }
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return "snug was built without code for " + gpu + " (compute capability " + std::to_string(major) + "." +
         std::to_string(minor) +
         "); configure again with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(major) +
         std::to_string(minor);
}

}  // namespace snug::ops
