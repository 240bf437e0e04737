// norm_rope as the two operators that it stands for, and when CUDA does it so. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "snug/ops/rms_norm.h"
#include "snug/ops/rope.h"

namespace snug::ops {

constexpr int kNormRopeMostHeadDim = 512;  // what a warp holds
constexpr int kNormRopeBlocks =
    4;  // of a processor, in the backward; each makes a part of the weight's gradient

inline std::tuple<at::Tensor, at::Tensor> norm_rope_by_parts(const at::Tensor& x, const at::Tensor& weight,
                                                             const at::Tensor& cos, const at::Tensor& sin,
                                                             double eps) {
  const auto [normed, rstd] = rms_norm_with_rstd(x, weight, eps);
  return {rope_by(normed.transpose(1, 2), cos, sin, /*inverse=*/false), rstd};
}

inline std::tuple<at::Tensor, at::Tensor> norm_rope_backward_by_parts(
    const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cos,
    const at::Tensor& sin, const at::Tensor& rstd) {
  const at::Tensor by_token = grad_out.transpose(1, 2).contiguous();
  const at::Tensor grad_normed = rope_by(by_token.transpose(1, 2), cos, sin, /*inverse=*/true);
  return rms_norm_backward(grad_normed.transpose(1, 2), {}, x, weight, rstd);
}

}  // namespace snug::ops
