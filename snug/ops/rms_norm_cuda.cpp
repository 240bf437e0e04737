// The norms on CUDA: allocates what rms_norm_cuda.cu fills.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "snug/ops/norm_launch.h"
#include "snug/ops/rms_norm_kernel.h"

namespace snug::ops {
namespace {

RmsNormForward arguments(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return {.x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .rows = norm_rows("rms_norm", x),
          .hidden = static_cast<int>(x.size(-1)),
          .eps = static_cast<float>(eps),
          .dtype = kernel_dtype("rms_norm", x)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, double eps) {
  RmsNormForward norm = arguments(x, weight, eps);
  at::Tensor out = at::empty_like(x);
  at::Tensor rstd = at::empty({norm.rows}, x.options().dtype(at::kFloat));
  norm.out = out.mutable_data_ptr();
  norm.rstd = rstd.mutable_data_ptr<float>();
  launch_on(x, norm);
  return {out, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_cuda(const at::Tensor& x,
                                                                 const at::Tensor& residual,
                                                                 const at::Tensor& weight, double eps) {
  RmsNormForward norm = arguments(x, weight, eps);
  at::Tensor sum = at::empty_like(x);
  at::Tensor out = at::empty_like(x);
  at::Tensor rstd = at::empty({norm.rows}, x.options().dtype(at::kFloat));
  norm.residual = residual.const_data_ptr();
  norm.sum = sum.mutable_data_ptr();
  norm.out = out.mutable_data_ptr();
  norm.rstd = rstd.mutable_data_ptr<float>();
  launch_on(x, norm);
  return {sum, out, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& grad_out,
                                                          const std::optional<at::Tensor>& grad_sum,
                                                          const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor& rstd) {
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t rows = norm_rows("rms_norm", x), hidden = x.size(-1);
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  const int blocks = norm_backward_blocks(rows, grad_sum ? 5 : 6);
  const at::Tensor partial = at::empty({blocks, hidden}, x.options().dtype(at::kFloat));
  launch_on(x, RmsNormBackward{.grad_out = grad_out.const_data_ptr(),
                               .grad_sum = grad_sum ? grad_sum->const_data_ptr() : nullptr,
                               .x = x.const_data_ptr(),
                               .weight = weight.const_data_ptr(),
                               .rstd = rstd.const_data_ptr<float>(),
                               .grad_x = grad_x.mutable_data_ptr(),
                               .grad_weight = grad_weight.mutable_data_ptr(),
                               .partial = partial.mutable_data_ptr<float>(),
                               .blocks = blocks,
                               .rows = rows,
                               .hidden = static_cast<int>(hidden),
                               .dtype = kernel_dtype("rms_norm", x)});
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("rms_norm", TORCH_FN(rms_norm_cuda));
  library.impl("add_rms_norm", TORCH_FN(add_rms_norm_cuda));
  library.impl("rms_norm_backward", TORCH_FN(rms_norm_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
