// Divides rows by their root mean square and scales them by a weight; with the residual sum before it, in one
// pass over memory.
//
//   at::Tensor y = rms_norm(x, weight, 1e-5);
//   auto [sum, out] = add_rms_norm(x, residual, weight, 1e-5);
//
// Two dispatcher operators with one backward. They return all that it needs: rstd, the reciprocal of each
// row's root mean square.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "snug/base/export.h"
#include "snug/ops/sum_and_norm.h"

namespace snug::ops {

// x [..., hidden], weight [hidden], one dtype: fp32, bf16 or fp16, on the CPU fp64 too. Sums are at least
// fp32.
SNUG_API at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The norm of x + residual, which is rounded to its dtype first.
SNUG_API SumAndNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                                 double eps);

// The operators themselves. Inputs are contiguous; rstd is one per row, at least fp32.
SNUG_API std::tuple<at::Tensor, at::Tensor> rms_norm_with_rstd(const at::Tensor& x, const at::Tensor& weight,
                                                               double eps);
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_with_rstd(const at::Tensor& x,
                                                                               const at::Tensor& residual,
                                                                               const at::Tensor& weight,
                                                                               double eps);
// The gradients of x and of weight; grad_sum is that of x by another way, and is added.
SNUG_API std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_out,
                                                              const std::optional<at::Tensor>& grad_sum,
                                                              const at::Tensor& x, const at::Tensor& weight,
                                                              const at::Tensor& rstd);

}  // namespace snug::ops
