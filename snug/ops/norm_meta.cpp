// The norms on Meta: what the kernels of the device allocate for which it stands, in their order.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "snug/hooks/meta_target.h"
#include "snug/ops/norm_rope_by_parts.h"
#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor one_per_row(const at::Tensor& x) {
  return at::empty({x.numel() / x.size(-1)}, wide_options(x));
}

// Sums over some rows each: on CUDA as norm_launch.h has it.
void take_partial_sums(const at::Tensor& x, std::int64_t count, std::int64_t blocks_per_processor) {
  const std::int64_t parts =
      hooks::meta_stands_for_cuda()
          ? std::min(x.numel() / x.size(-1), hooks::kMetaProcessors * blocks_per_processor)
          : at::get_num_threads();
  at::empty({count, parts, x.size(-1)}, wide_options(x));
}

std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& x, const at::Tensor&, double) {
  at::Tensor out = at::empty_like(x);
  return {out, one_per_row(x)};
}

Three add_rms_norm_meta(const at::Tensor& x, const at::Tensor&, const at::Tensor&, double) {
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
  take_partial_sums(x, 1, grad_sum ? 5 : 6);
  return {grad_x, grad_weight};
}

Three layer_norm_meta(const at::Tensor& x, const at::Tensor&, const std::optional<at::Tensor>&, double) {
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = one_per_row(x);
  return {out, mean, one_per_row(x)};
}

Four add_layer_norm_meta(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double) {
  at::Tensor sum = at::empty_like(x);
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = one_per_row(x);
  return {sum, out, mean, one_per_row(x)};
}

Three layer_norm_backward_meta(const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor&, const at::Tensor&,
                               bool has_bias) {
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  at::Tensor grad_bias = has_bias ? at::empty_like(weight) : at::Tensor();
  take_partial_sums(x, has_bias ? 2 : 1, 5);
  return {grad_x, grad_weight, grad_bias};
}

bool is_one_kernel(const at::Tensor& x) {
  return hooks::meta_stands_for_cuda() && x.size(3) <= kNormRopeMostHeadDim;
}

std::tuple<at::Tensor, at::Tensor> norm_rope_meta(const at::Tensor& x, const at::Tensor& weight,
                                                  const at::Tensor& cos, const at::Tensor& sin, double eps) {
  if (!is_one_kernel(x)) return norm_rope_by_parts(x, weight, cos, sin, eps);
  at::Tensor out = at::empty_like(x);
  return {out.transpose(1, 2), one_per_row(x)};
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward_meta(const at::Tensor& grad_out, const at::Tensor& x,
                                                           const at::Tensor& weight, const at::Tensor& cos,
                                                           const at::Tensor& sin, const at::Tensor& rstd) {
  if (!is_one_kernel(x)) return norm_rope_backward_by_parts(grad_out, x, weight, cos, sin, rstd);
  const at::Tensor by_token = grad_out.transpose(1, 2).contiguous();
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  take_partial_sums(x, 1, kNormRopeBlocks);
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("rms_norm", TORCH_FN(rms_norm_meta));
  library.impl("add_rms_norm", TORCH_FN(add_rms_norm_meta));
  library.impl("rms_norm_backward", TORCH_FN(rms_norm_backward_meta));
  library.impl("layer_norm", TORCH_FN(layer_norm_meta));
  library.impl("add_layer_norm", TORCH_FN(add_layer_norm_meta));
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_meta));
  library.impl("norm_rope", TORCH_FN(norm_rope_meta));
  library.impl("norm_rope_backward", TORCH_FN(norm_rope_backward_meta));
}

}  // namespace
}  // namespace snug::ops
