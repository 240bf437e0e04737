// norm_rope on CUDA: allocates what norm_rope_cuda.cu fills.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/norm_launch.h"
#include "snug/ops/norm_rope_by_parts.h"
#include "snug/ops/norm_rope_kernel.h"

namespace snug::ops {
namespace {

std::tuple<at::Tensor, at::Tensor> norm_rope_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                  const at::Tensor& cos, const at::Tensor& sin, double eps) {
  if (x.size(3) > kNormRopeMostHeadDim) return norm_rope_by_parts(x, weight, cos, sin, eps);
  const std::int64_t rows = norm_rows("norm_rope", x);
  const KernelDtype dtype = kernel_dtype("norm_rope", x);
  at::Tensor out = at::empty_like(x);
  at::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
  launch_on(x, NormRopeForward{.x = x.const_data_ptr(),
                               .weight = weight.const_data_ptr(),
                               .cos = cos.const_data_ptr(),
                               .sin = sin.const_data_ptr(),
                               .out = out.mutable_data_ptr(),
                               .rstd = rstd.mutable_data_ptr<float>(),
                               .rows = rows,
                               .heads = x.size(2),
                               .tokens = x.size(1),
                               .head_dim = static_cast<int>(x.size(3)),
                               .eps = static_cast<float>(eps),
                               .dtype = dtype});
  return {out.transpose(1, 2), rstd};
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x,
                                                           const at::Tensor& weight, const at::Tensor& cos,
                                                           const at::Tensor& sin, const at::Tensor& rstd) {
  if (x.size(3) > kNormRopeMostHeadDim)
    return norm_rope_backward_by_parts(grad_out, x, weight, cos, sin, rstd);
  const c10::cuda::CUDAGuard guard(x.device());
  const std::int64_t rows = norm_rows("norm_rope", x);
  const at::Tensor by_token = grad_out.transpose(1, 2).contiguous();
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  const int blocks = norm_backward_blocks(rows, kNormRopeBlocks);
  const at::Tensor partial = at::empty({blocks, x.size(3)}, x.options().dtype(at::kFloat));
  launch_on(x, NormRopeBackward{.grad_out = by_token.const_data_ptr(),
                                .x = x.const_data_ptr(),
                                .weight = weight.const_data_ptr(),
                                .cos = cos.const_data_ptr(),
                                .sin = sin.const_data_ptr(),
                                .rstd = rstd.const_data_ptr<float>(),
                                .grad_x = grad_x.mutable_data_ptr(),
                                .grad_weight = grad_weight.mutable_data_ptr(),
                                .partial = partial.mutable_data_ptr<float>(),
                                .blocks = blocks,
                                .rows = rows,
                                .heads = x.size(2),
                                .tokens = x.size(1),
                                .head_dim = static_cast<int>(x.size(3)),
                                .dtype = kernel_dtype("norm_rope", x)});
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("norm_rope", TORCH_FN(norm_rope_cuda));
  library.impl("norm_rope_backward", TORCH_FN(norm_rope_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
