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

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                               const std::optional<at::Tensor>& bias,
                                                               double eps) {
  const std::int64_t rows = norm_rows("layer_norm", x);
  const KernelDtype dtype = kernel_dtype("layer_norm", x);
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = at::empty({rows}, x.options().dtype(at::kFloat));
  at::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  launch_on(x, LayerNormForward{.x = x.const_data_ptr(),
                                .weight = weight.const_data_ptr(),
                                .bias = bias ? bias->const_data_ptr() : nullptr,
                                .out = out.mutable_data_ptr(),
                                .mean = mean.mutable_data_ptr<float>(),
                                .rstd = rstd.mutable_data_ptr<float>(),
                                .rows = rows,
                                .hidden = static_cast<int>(x.size(-1)),
                                .eps = static_cast<float>(eps),
                                .dtype = dtype});
  return {out, mean, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward_cuda(
    const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
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
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
