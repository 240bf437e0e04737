// layer_norm on CUDA: allocates what layer_norm_cuda.cu fills.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "snug/ops/layer_norm_kernel.h"
#include "snug/ops/norm_launch.h"

namespace snug::ops {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

LayerNormForward arguments(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, double eps) {
  return {.x = x.const_data_ptr(),
          .weight = weight.const_data_ptr(),
          .bias = bias ? bias->const_data_ptr() : nullptr,
          .rows = norm_rows("layer_norm", x),
          .hidden = static_cast<int>(x.size(-1)),
          .eps = static_cast<float>(eps),
          .dtype = kernel_dtype("layer_norm", x)};
}

Three run_forward(const at::Tensor& x, LayerNormForward& norm) {
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = at::empty({norm.rows}, x.options().dtype(at::kFloat));
  at::Tensor rstd = at::empty({norm.rows}, x.options().dtype(at::kFloat));
  norm.out = out.mutable_data_ptr();
  norm.mean = mean.mutable_data_ptr<float>();
  norm.rstd = rstd.mutable_data_ptr<float>();
  launch_on(x, norm);
  return {out, mean, rstd};
}

Three layer_norm_cuda(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      double eps) {
  LayerNormForward norm = arguments(x, weight, bias, eps);
  return run_forward(x, norm);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_cuda(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, double eps) {
  LayerNormForward norm = arguments(x, weight, bias, eps);
  at::Tensor sum = at::empty_like(x);
  norm.residual = residual.const_data_ptr();
  norm.sum = sum.mutable_data_ptr();
  auto [out, mean, rstd] = run_forward(x, norm);
  return {sum, out, mean, rstd};
}

Three layer_norm_backward_cuda(const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum,
                               const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
                               const at::Tensor& rstd, bool has_bias) {
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t rows = norm_rows("layer_norm", x), hidden = x.size(-1);
  const KernelDtype dtype = kernel_dtype("layer_norm", x);
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  at::Tensor grad_bias;
  if (has_bias) grad_bias = at::empty_like(weight);
  const int blocks = norm_backward_blocks(rows, 5);
  const at::Tensor partial = at::empty({has_bias ? 2 : 1, blocks, hidden}, x.options().dtype(at::kFloat));
  launch_on(x, LayerNormBackward{.grad_out = grad_out.const_data_ptr(),
                                 .grad_sum = grad_sum ? grad_sum->const_data_ptr() : nullptr,
                                 .x = x.const_data_ptr(),
                                 .weight = weight.const_data_ptr(),
                                 .mean = mean.const_data_ptr<float>(),
                                 .rstd = rstd.const_data_ptr<float>(),
                                 .grad_x = grad_x.mutable_data_ptr(),
                                 .grad_weight = grad_weight.mutable_data_ptr(),
                                 .grad_bias = has_bias ? grad_bias.mutable_data_ptr() : nullptr,
                                 .partial = partial.mutable_data_ptr<float>(),
                                 .blocks = blocks,
                                 .rows = rows,
                                 .hidden = static_cast<int>(hidden),
                                 .dtype = dtype});
  return {grad_x, grad_weight, grad_bias};
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("layer_norm", TORCH_FN(layer_norm_cuda));
  library.impl("add_layer_norm", TORCH_FN(add_layer_norm_cuda));
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
