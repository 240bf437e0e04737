// Rows with their mean taken away and divided by their standard deviation, scaled by a weight, shifted by a
// bias if there is one.
//
//   at::Tensor y = layer_norm(x, weight, bias, 1e-5);
//   auto [sum, out] = add_layer_norm(x, residual, weight, bias, 1e-5);
//
// Two dispatcher operators with one backward. They return all that it needs: each row's mean, and rstd, the
// reciprocal of its standard deviation.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "snug/base/export.h"
#include "snug/ops/sum_and_norm.h"

namespace snug::ops {

// x [..., hidden], weight and bias [hidden], one dtype: fp32, bf16 or fp16, on the CPU fp64 too. Sums are at
// least fp32.
SNUG_API at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, double eps);

// The norm of x + residual, which is rounded to its dtype first.
SNUG_API SumAndNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                                   const std::optional<at::Tensor>& bias, double eps);

// The operators themselves. Inputs are contiguous; mean and rstd are one per row, at least fp32.
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_with_statistics(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps);
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_with_statistics(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, double eps);
// The gradients of x, weight and bias; that of bias is undefined where there is none. grad_sum is that of x
// by another way, and is added.
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x,
    const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& rstd, bool has_bias);

}  // namespace snug::ops
