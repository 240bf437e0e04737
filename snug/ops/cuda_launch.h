// What the CUDA side of every operator needs to call its kernel. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

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

// On the current stream of the tensor's device.
template <class Arguments>
void launch_on(const at::Tensor& tensor, const Arguments& arguments) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  C10_CUDA_CHECK(launch(arguments, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace snug::ops
