// linear_cross_entropy on CUDA: matrix products of ATen around cross_entropy_cuda.cu.
#include <torch/library.h>

#include <tuple>

#include "snug/ops/cross_entropy_kernel.h"
#include "snug/ops/cuda_launch.h"
#include "snug/ops/linear_cross_entropy_pieces.h"
#include "snug/ops/scale_kernel.h"

namespace snug::ops {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_cuda(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
    std::int64_t ignore_index, std::int64_t rows_at_a_time, bool hidden_grad, bool weight_grad) {
  const KernelDtype dtype = kernel_dtype("linear_cross_entropy", hidden);
  const double grad_scale = scale * gradient_lift(scale, hidden.size(0), hidden.scalar_type());
  const std::int64_t columns = padded_columns(hidden.size(0), weight.size(0), hidden.scalar_type());
  constexpr std::int64_t kMostColumns = 1 << 30;
  check(columns <= kMostColumns, "linear_cross_entropy on CUDA takes at most ", kMostColumns, " words, got ",
        weight.size(0));
  return in_pieces(hidden, weight, targets, rows_at_a_time, columns, at::kFloat, hidden_grad, weight_grad,
                   [&](at::Tensor&& logits, const at::Tensor& wanted, const at::Tensor& losses) {
                     launch_on(logits, CrossEntropy{.logits = logits.mutable_data_ptr(),
                                                    .targets = wanted.const_data_ptr<std::int64_t>(),
                                                    .losses = losses.mutable_data_ptr<float>(),
                                                    .rows = logits.size(0),
                                                    .vocabulary = weight.size(0),
                                                    .columns = columns,
                                                    .ignore_index = ignore_index,
                                                    .scale = static_cast<float>(scale),
                                                    .grad_scale = static_cast<float>(grad_scale),
                                                    .wants_grad = hidden_grad || weight_grad,
                                                    .dtype = dtype});
                     return std::move(logits);
                   });
}

void scale_cuda(at::Tensor& tensor, const at::Tensor& factor) {
  launch_on(tensor, ScaleInPlace{.x = tensor.mutable_data_ptr(),
                                 .factor = factor.const_data_ptr<float>(),
                                 .count = tensor.numel(),
                                 .dtype = kernel_dtype("scale_", tensor)});
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("scale_", TORCH_FN(scale_cuda));
  library.impl("linear_cross_entropy", TORCH_FN(linear_cross_entropy_cuda));
}

}  // namespace
}  // namespace snug::ops
