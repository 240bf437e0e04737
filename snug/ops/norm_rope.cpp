// Schema, derivative and checked front, and the kernel for the CPU: the two operators. CUDA's is
// in norm_rope_cuda.cu.
#include "snug/ops/norm_rope.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/norm_rope_by_parts.h"
#include "snug/ops/operator.h"
#include "snug/ops/rope_table.h"

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

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "norm_rope(Tensor x, Tensor weight, Tensor cos, Tensor sin, float eps) -> (Tensor out, Tensor rstd)");
  library.def(
      "norm_rope_backward(Tensor grad_out, Tensor x, Tensor weight, Tensor cos, Tensor sin, Tensor rstd) -> "
      "(Tensor grad_x, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("norm_rope", TORCH_FN(norm_rope_by_parts));
  library.impl("norm_rope_backward", TORCH_FN(norm_rope_backward_by_parts));
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
