// Schema, derivative and checked front, and the kernels for CPU and Meta. CUDA's is in norm_rope_cuda.cu.
#include "snug/ops/norm_rope.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "snug/base/error.h"
#include "snug/hooks/meta_target.h"
#include "snug/ops/norm_rope_by_parts.h"
#include "snug/ops/operator.h"
#include "snug/ops/rope_table.h"
#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class NormRopeFunction : public torch::autograd::Function<NormRopeFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& cos, const at::Tensor& sin, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, rstd] = norm_rope_with_rstd(x, weight, cos, sin, eps);
    context->save_for_backward({x, weight, cos, sin, rstd});
    context->mark_non_differentiable({rstd});
    context->set_materialize_grads(false);
    return {out, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] =
        norm_rope_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4]);
    return {grad_x, grad_weight, {}, {}, {}};
  }
};

std::tuple<at::Tensor, at::Tensor> differentiable_norm_rope(const at::Tensor& x, const at::Tensor& weight,
                                                            const at::Tensor& cos, const at::Tensor& sin,
                                                            double eps) {
  auto results = NormRopeFunction::apply(x, weight, cos, sin, eps);
  return {results[0], results[1]};
}

bool is_one_kernel(const at::Tensor& x) {
  return x.is_meta() && hooks::meta_stands_for_cuda() && x.size(3) <= kNormRopeMostHeadDim;
}

std::tuple<at::Tensor, at::Tensor> norm_rope_anywhere(const at::Tensor& x, const at::Tensor& weight,
                                                      const at::Tensor& cos, const at::Tensor& sin,
                                                      double eps) {
  if (!is_one_kernel(x)) return norm_rope_by_parts(x, weight, cos, sin, eps);
  at::Tensor out = at::empty_like(x);
  return {out.transpose(1, 2), at::empty({x.numel() / x.size(3)}, wide_options(x))};
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward_anywhere(const at::Tensor& grad_out,
                                                               const at::Tensor& x, const at::Tensor& weight,
                                                               const at::Tensor& cos, const at::Tensor& sin,
                                                               const at::Tensor& rstd) {
  if (!is_one_kernel(x)) return norm_rope_backward_by_parts(grad_out, x, weight, cos, sin, rstd);
  const at::Tensor by_token = grad_out.transpose(1, 2).contiguous();
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  at::empty({std::min(rstd.numel(), hooks::kMetaProcessors * kNormRopeBlocks), x.size(3)}, wide_options(x));
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "norm_rope(Tensor x, Tensor weight, Tensor cos, Tensor sin, float eps) -> (Tensor out, Tensor rstd)");
  library.def(
      "norm_rope_backward(Tensor grad_out, Tensor x, Tensor weight, Tensor cos, Tensor sin, Tensor rstd) -> "
      "(Tensor grad_x, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("norm_rope", TORCH_FN(norm_rope_anywhere));
  library.impl("norm_rope_backward", TORCH_FN(norm_rope_backward_anywhere));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("norm_rope", TORCH_FN(differentiable_norm_rope));
  library.impl("norm_rope_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& weight, const RopeTable& table, double eps) {
  constexpr auto kExpected = "[batch, tokens, heads, head_dim]";
  check(x.dim() == 4 && weight.dim() == 1 && x.size(3) == weight.size(0), "norm_rope: expected x ", kExpected,
        " and weight [head_dim], got ", x.sizes(), " and ", weight.sizes());
  check(x.scalar_type() == weight.scalar_type() && x.device() == weight.device(), "norm_rope: x is ",
        x.scalar_type(), " on ", x.device(), ", weight is ", weight.scalar_type(), " on ", weight.device());
  check_rope_table("norm_rope", kExpected, x, x.size(1), x.size(3), table);
  return std::get<0>(norm_rope_with_rstd(x.contiguous(), weight.contiguous(), table.cos.contiguous(),
                                         table.sin.contiguous(), eps));
}

std::tuple<at::Tensor, at::Tensor> norm_rope_with_rstd(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& cos, const at::Tensor& sin,
                                                       double eps) {
  static const auto op = find_operator<decltype(norm_rope_with_rstd)>("snug::norm_rope");
  return op.call(x, weight, cos, sin, eps);
}

std::tuple<at::Tensor, at::Tensor> norm_rope_backward(const at::Tensor& grad_out, const at::Tensor& x,
                                                      const at::Tensor& weight, const at::Tensor& cos,
                                                      const at::Tensor& sin, const at::Tensor& rstd) {
  static const auto op = find_operator<decltype(norm_rope_backward)>("snug::norm_rope_backward");
  return op.call(grad_out, x, weight, cos, sin, rstd);
}

}  // namespace snug::ops
