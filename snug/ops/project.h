// One input through several matrices: queries, keys and values, or gate and up. In the backward their
// contributions to the input's gradient are added inside the products, into one buffer, and so are a weight's
// gradients of several micro-batches, into its grad() (see gradient_buffer.h). That is of the weight's type,
// or fp32 after weight.set_grad_dtype(at::kFloat).
//
//   std::vector<at::Tensor> qkv = project(x, {q_weight, k_weight, v_weight});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/base/export.h"

namespace snug::ops {

// How a weight lies in memory: as torch's Linear has it, or GPT-2's Conv1D.
enum class WeightLayout { OutIn, InOut };

// x [..., in], each weight [out_i, in]: [..., out_i] each. Biases [out_i]: none, or one for each weight.
SNUG_API std::vector<at::Tensor> project(const at::Tensor& x, at::TensorList weights,
                                         at::TensorList biases = {},
                                         WeightLayout layout = WeightLayout::OutIn);

SNUG_API at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {},
                           WeightLayout layout = WeightLayout::OutIn);

// The operator of the backward: the sum of grads[i] times weights[i], [rows, in]. Grads are [rows, out_i].
SNUG_API at::Tensor project_backward(at::TensorList grads, at::TensorList weights, WeightLayout layout);

}  // namespace snug::ops
