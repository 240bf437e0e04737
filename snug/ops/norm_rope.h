// rms_norm over each head, then rope: what Qwen3 does to queries and keys, in one pass over memory.
//
//   at::Tensor query = norm_rope(x, weight, table, 1e-6);    // [batch, heads, tokens, head_dim]
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "snug/base/export.h"
#include "snug/ops/rope.h"

namespace snug::ops {

// x [batch, tokens, heads, head_dim], weight [head_dim], of the table's dtype.
SNUG_API at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& weight, const RopeTable& table,
                              double eps);

// The operators themselves. x is contiguous; rstd is one per head of a token, at least fp32.
SNUG_API std::tuple<at::Tensor, at::Tensor> norm_rope_with_rstd(const at::Tensor& x, const at::Tensor& weight,
                                                                const at::Tensor& cos, const at::Tensor& sin,
                                                                double eps);
// The gradients of x and of weight.
SNUG_API std::tuple<at::Tensor, at::Tensor> norm_rope_backward(const at::Tensor& grad_out,
                                                               const at::Tensor& x, const at::Tensor& weight,
                                                               const at::Tensor& cos, const at::Tensor& sin,
                                                               const at::Tensor& rstd);

}  // namespace snug::ops
