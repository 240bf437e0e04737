// What the CUDA side of every operator needs to call its kernel. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "snug/base/error.h"
#include "snug/ops/kernel_dtype.h"

namespace snug::ops {

inline KernelDtype kernel_dtype(const char* name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return KernelDtype::Float;
    case at::kBFloat16:
      return KernelDtype::BFloat16;
    case at::kHalf:
      return KernelDtype::Half;
    default:
      fail(name, " on CUDA takes float32, bfloat16 and float16, got ", tensor.scalar_type());
  }
}

inline int processors_of_current_device() {
  int device = 0, processors = 1;
  C10_CUDA_CHECK(cudaGetDevice(&device));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return processors;
}

// On the current stream of the tensor's device.
template <class Arguments>
void launch_on(const at::Tensor& tensor, const Arguments& arguments) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  C10_CUDA_CHECK(launch(arguments, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace snug::ops
