// The head of a language model and its loss, a piece of the rows at a time: logits are never whole.
//
//   at::Tensor loss = linear_cross_entropy(hidden, head_weight, targets, {.scale = 1.0 / count});
//
// The gradients are made together with the loss, while each piece of the logits is there, and handed out by
// the backward: they exist from the forward on, and nothing of it runs again.
// Without grad mode only the loss is made. In fp16 a loss scale may be part of `scale` or multiply the loss:
// both give the gradients all that fp16 can hold of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "snug/base/export.h"

namespace snug::ops {

struct LinearCrossEntropyOptions {
  double scale = 1;                  // of the sum over all targets, and of the gradients
  std::int64_t ignore_index = -100;  // such targets count for nothing
  std::int64_t rows_at_a_time = 0;   // 0: an equal part, whose logits take 512 MiB at most
};

// scale * sum of the cross entropies of hidden [..., in] times weight [vocabulary, in] transposed, against
// targets [...] (int64): an fp32 scalar (fp64 for fp64).
SNUG_API at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                         const at::Tensor& targets,
                                         const LinearCrossEntropyOptions& options = {});

// How many pieces that are for so many rows.
SNUG_API std::int64_t usual_pieces(std::int64_t rows, std::int64_t vocabulary, at::ScalarType dtype);

// The operator itself, below autograd: (loss, grad_hidden, grad_weight), the latter two undefined unless
// asked for. hidden is [rows, in], targets [rows]. In fp16 the gradients are larger, see Note [Gradients
// before their scale].
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_with_grads(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
    std::int64_t ignore_index, std::int64_t rows_at_a_time, bool hidden_grad, bool weight_grad);

}  // namespace snug::ops
