// swiglu on CUDA: allocates what swiglu_cuda.cu fills.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/swiglu_kernel.h"

namespace snug::ops {
namespace {

at::Tensor swiglu_cuda(const at::Tensor& gate, const at::Tensor& up) {
  at::Tensor out = at::empty_like(gate);
  launch_on(gate, SwigluForward{.gate = gate.const_data_ptr(),
                                .up = up.const_data_ptr(),
                                .out = out.mutable_data_ptr(),
                                .count = gate.numel(),
                                .dtype = kernel_dtype("swiglu", gate)});
  return out;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate,
                                                        const at::Tensor& up) {
  at::Tensor grad_gate = at::empty_like(gate);
  at::Tensor grad_up = at::empty_like(up);
  launch_on(gate, SwigluBackward{.grad_out = grad_out.const_data_ptr(),
                                 .gate = gate.const_data_ptr(),
                                 .up = up.const_data_ptr(),
                                 .grad_gate = grad_gate.mutable_data_ptr(),
                                 .grad_up = grad_up.mutable_data_ptr(),
                                 .count = gate.numel(),
                                 .dtype = kernel_dtype("swiglu", gate)});
  return {grad_gate, grad_up};
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("swiglu", TORCH_FN(swiglu_cuda));
  library.impl("swiglu_backward", TORCH_FN(swiglu_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
