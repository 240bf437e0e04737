// The norms on Meta: what the kernels of the device allocate for which it stands, in their order.
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "snug/hooks/meta_target.h"

namespace snug::ops {
namespace {

// As norm_launch.h has it, on an H200.
std::int64_t meta_norm_blocks(const at::Tensor& x, bool has_grad_sum) {
  constexpr std::int64_t kProcessors = 132;
  return std::min(x.numel() / x.size(-1), kProcessors * (has_grad_sum ? 5 : 6));
}

at::Tensor one_per_row(const at::Tensor& x) {
  return at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::toOpMathType(x.scalar_type())));
}

std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& x, const at::Tensor&, double) {
  at::Tensor out = at::empty_like(x);
  return {out, one_per_row(x)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_meta(const at::Tensor& x, const at::Tensor&,
                                                                 const at::Tensor&, double) {
  at::Tensor sum = at::empty_like(x);
  at::Tensor out = at::empty_like(x);
  return {sum, out, one_per_row(x)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor&,
                                                          const std::optional<at::Tensor>& grad_sum,
                                                          const at::Tensor& x, const at::Tensor& weight,
                                                          const at::Tensor&) {
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  const std::int64_t parts =
      hooks::meta_stands_for_cuda() ? meta_norm_blocks(x, grad_sum.has_value()) : at::get_num_threads();
  at::empty({parts, weight.size(0)}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("rms_norm", TORCH_FN(rms_norm_meta));
  library.impl("add_rms_norm", TORCH_FN(add_rms_norm_meta));
  library.impl("rms_norm_backward", TORCH_FN(rms_norm_backward_meta));
}

}  // namespace
}  // namespace snug::ops
