// The walk over the rows that all devices share. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace snug::ops {

// `piece(logits, targets, losses)` puts the loss of each row into losses and returns the logits' gradient,
// which may be where the logits were.
template <class Piece>
std::tuple<at::Tensor, at::Tensor, at::Tensor> in_pieces(const at::Tensor& hidden, const at::Tensor& weight,
                                                         const at::Tensor& targets,
                                                         std::int64_t rows_at_a_time, at::ScalarType sums,
                                                         bool hidden_grad, bool weight_grad, Piece piece) {
  const std::int64_t rows = hidden.size(0);
  const at::Tensor losses = at::empty({rows}, hidden.options().dtype(sums));
  at::Tensor grad_hidden = hidden_grad ? at::empty_like(hidden) : at::Tensor();
  at::Tensor grad_weight = weight_grad ? at::empty_like(weight) : at::Tensor();
  for (std::int64_t first = 0; first < rows; first += rows_at_a_time) {
    const std::int64_t count = std::min(rows_at_a_time, rows - first);
    const at::Tensor here = hidden.narrow(0, first, count);
    at::Tensor grad = at::mm(here, weight.t());
    grad = piece(std::move(grad), targets.narrow(0, first, count), losses.narrow(0, first, count));
    if (hidden_grad) {
      at::Tensor to = grad_hidden.narrow(0, first, count);
      at::mm_out(to, grad, weight);
    }
    if (!weight_grad) continue;
    if (first == 0)
      at::mm_out(grad_weight, grad.t(), here);
    else
      grad_weight.addmm_(grad.t(), here);
  }
  return {losses.sum(), std::move(grad_hidden), std::move(grad_weight)};
}

}  // namespace snug::ops
