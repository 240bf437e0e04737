// The walk over the rows that all devices share. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "snug/ops/product.h"

namespace snug::ops {

// Note [Gradients before their scale]
// The gradients are made before anyone knows what the loss will be multiplied by, and fp16 has no numbers for
// them at a mean's scale. So they are lifted by a power of two, which hand_out() takes off again in fp32, to
// about 4096 over the rows, unless the scale that was asked for is above that. More would be finer, but what
// overflows here no smaller loss scale mends: as it is, an element of the weight's gradient has to be 16 in
// the mean over the rows, or one of the weight 8 times their number.
inline double gradient_lift(double scale, std::int64_t rows, at::ScalarType dtype) {
  constexpr double kHeld = 4096, kMostLift = 0x1p100;  // whose inverse fp32 has
  const double missing = kHeld / static_cast<double>(rows) / std::abs(scale);
  if (dtype != at::kHalf || !(missing > 1)) return 1;
  return std::min(std::exp2(std::floor(std::log2(missing))), kMostLift);
}

// Columns of the logits: the vocabulary and what pads it. cuBLAS's fast kernels want sizes and rows that are
// multiples of 16 bytes, and GPT-2's 50,257 words are none: the products take half as long with 50,304. It
// costs a copy of the weight, for which few rows are not worth it.
inline std::int64_t padded_columns(std::int64_t rows, std::int64_t vocabulary, at::ScalarType dtype) {
  constexpr std::int64_t kFewRows = 256;
  constexpr std::int64_t kPadded = 128;  // bytes
  const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
  if (rows < kFewRows || vocabulary * width % kProductAlignment == 0) return vocabulary;
  return (vocabulary * width + kPadded - 1) / kPadded * kPadded / width;
}

// The first rows, without memory for what follows.
inline at::Tensor first_rows(at::Tensor tensor, std::int64_t rows) {
  return tensor.size(0) == rows ? std::move(tensor) : tensor.narrow(0, 0, rows).clone();
}

inline at::Tensor with_rows_of_zeros(const at::Tensor& tensor, std::int64_t rows) {
  if (tensor.size(0) == rows) return tensor;
  at::Tensor padded = at::empty({rows, tensor.size(1)}, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  padded.narrow(0, tensor.size(0), rows - tensor.size(0)).zero_();
  return padded;
}

// `columns`: of the logits. `piece(logits, targets, losses)` puts the loss of each row into losses and
// returns the logits' gradient, which may be where the logits were, and is zero where they are padded.
template <class Piece>
std::tuple<at::Tensor, at::Tensor, at::Tensor> in_pieces(const at::Tensor& hidden, const at::Tensor& weight,
                                                         const at::Tensor& targets,
                                                         std::int64_t rows_at_a_time, std::int64_t columns,
                                                         at::ScalarType sums, bool hidden_grad,
                                                         bool weight_grad, Piece piece) {
  const std::int64_t rows = hidden.size(0);
  const at::Tensor losses = at::empty({rows}, hidden.options().dtype(sums));
  at::Tensor grad_hidden = hidden_grad ? at::empty_like(hidden) : at::Tensor();
  at::Tensor words = with_rows_of_zeros(weight, columns);
  at::Tensor grad_words = weight_grad ? at::empty_like(words) : at::Tensor();
  for (std::int64_t first = 0; first < rows; first += rows_at_a_time) {
    const std::int64_t count = std::min(rows_at_a_time, rows - first);
    const at::Tensor here = hidden.narrow(0, first, count);
    at::Tensor grad =
        piece(product(here, words.t()), targets.narrow(0, first, count), losses.narrow(0, first, count));
    if (hidden_grad) {
      at::Tensor to = grad_hidden.narrow(0, first, count);
      product_into(to, grad, words);
    }
    if (!weight_grad) continue;
    if (first == 0)
      product_into(grad_words, grad.t(), here);
    else
      add_product(grad_words, grad.t(), here);
  }
  words.reset();
  if (weight_grad) grad_words = first_rows(std::move(grad_words), weight.size(0));
  return {losses.sum(), std::move(grad_hidden), std::move(grad_words)};
}

}  // namespace snug::ops
