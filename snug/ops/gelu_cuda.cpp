// gelu on CUDA: allocates what gelu_cuda.cu fills.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/gelu_kernel.h"

namespace snug::ops {
namespace {

at::Tensor gelu_cuda(const at::Tensor& x, bool tanh) {
  const KernelDtype dtype = kernel_dtype("gelu", x);
  at::Tensor out = at::empty_like(x);
  launch_on(x, GeluForward{.x = x.const_data_ptr(),
                           .out = out.mutable_data_ptr(),
                           .count = x.numel(),
                           .tanh = tanh,
                           .dtype = dtype});
  return out;
}

at::Tensor gelu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x, bool tanh) {
  const KernelDtype dtype = kernel_dtype("gelu", x);
  at::Tensor grad_x = at::empty_like(x);
  launch_on(x, GeluBackward{.grad_out = grad_out.const_data_ptr(),
                            .x = x.const_data_ptr(),
                            .grad_x = grad_x.mutable_data_ptr(),
                            .count = x.numel(),
                            .tanh = tanh,
                            .dtype = dtype});
  return grad_x;
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("gelu", TORCH_FN(gelu_cuda));
  library.impl("gelu_backward", TORCH_FN(gelu_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
