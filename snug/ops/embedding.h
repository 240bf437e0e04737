// Rows of a table by token, and their gradient: the same bits every time, on every device.
//
//   at::Tensor x = embedding(weight, tokens);  // [tokens..., hidden]
#pragma once

#include <ATen/core/Tensor.h>

#include "snug/base/export.h"

namespace snug::ops {

// weight [rows, hidden]: fp32, bf16 or fp16, on the CPU fp64 too; tokens int32 or int64, in [0, rows).
SNUG_API at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);

// The operator of the backward: [rows, hidden]. A token's gradients are added in a fixed order, at least in
// fp32, and rounded once. Inputs are contiguous.
SNUG_API at::Tensor embedding_backward(const at::Tensor& grad_out, const at::Tensor& tokens,
                                       std::int64_t rows);

}  // namespace snug::ops
