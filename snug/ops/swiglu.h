// silu(gate) * up, where silu(v) = v / (1 + exp(-v)); keeps its two inputs for the backward and nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "snug/base/export.h"

namespace snug::ops {

// Two tensors of the same sizes and dtype: fp32, bf16 or fp16, on the CPU fp64 too.
SNUG_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// The operator of the backward: the gradients of gate and up. Inputs are contiguous.
SNUG_API std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_out,
                                                            const at::Tensor& gate, const at::Tensor& up);

}  // namespace snug::ops
