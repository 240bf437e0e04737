// x * P(a normal variable is below x); keeps its input for the backward and nothing else.
//
//   at::Tensor y = gelu(x, GeluForm::Tanh);
#pragma once

#include <ATen/core/Tensor.h>

#include "snug/base/export.h"

namespace snug::ops {

// By the error function, or as GPT-2 has it: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
enum class GeluForm { Exact, Tanh };

// fp32, bf16 or fp16, on the CPU fp64 too.
SNUG_API at::Tensor gelu(const at::Tensor& x, GeluForm form = GeluForm::Exact);

// The operator of the backward. Inputs are contiguous.
SNUG_API at::Tensor gelu_backward(const at::Tensor& grad_out, const at::Tensor& x, GeluForm form);

}  // namespace snug::ops
