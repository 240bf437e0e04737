// Schemas, derivatives and checked fronts of the norms; the kernels are in rms_norm_{cpu,cuda,meta}.cpp.
#include "snug/ops/rms_norm.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, rstd] = rms_norm_with_rstd(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    context->mark_non_differentiable({rstd});
    context->set_materialize_grads(false);
    return {out, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] =
        rms_norm_backward(grads[0].contiguous(), std::nullopt, saved[0], saved[1], saved[2]);
    return {grad_x, grad_weight, {}};
  }
};

class AddRmsNormFunction : public torch::autograd::Function<AddRmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [sum, out, rstd] = add_rms_norm_with_rstd(x, residual, weight, eps);
    context->save_for_backward({sum, weight, rstd});
    context->mark_non_differentiable({rstd});
    context->set_materialize_grads(false);
    return {sum, out, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[1].defined()) return {grads[0], grads[0], {}, {}};  // only the sum was used
    const auto saved = context->get_saved_variables();
    const std::optional<at::Tensor> grad_sum =
        grads[0].defined() ? std::optional(grads[0].contiguous()) : std::nullopt;
    auto [grad_x, grad_weight] =
        rms_norm_backward(grads[1].contiguous(), grad_sum, saved[0], saved[1], saved[2]);
    return {grad_x, grad_x, grad_weight, {}};
  }
};

std::tuple<at::Tensor, at::Tensor> differentiable_rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                                           double eps) {
  auto results = RmsNormFunction::apply(x, weight, eps);
  return {results[0], results[1]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiable_add_rms_norm(const at::Tensor& x,
                                                                           const at::Tensor& residual,
                                                                           const at::Tensor& weight,
                                                                           double eps) {
  auto results = AddRmsNormFunction::apply(x, residual, weight, eps);
  return {results[0], results[1], results[2]};
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor out, Tensor rstd)");
  library.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor sum, Tensor out, Tensor "
      "rstd)");
  library.def(
      "rms_norm_backward(Tensor grad_out, Tensor? grad_sum, Tensor x, Tensor weight, Tensor rstd) -> (Tensor "
      "grad_x, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("rms_norm", TORCH_FN(differentiable_rms_norm));
  library.impl("add_rms_norm", TORCH_FN(differentiable_add_rms_norm));
  library.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

void check_inputs(const char* name, const at::Tensor& x, const at::Tensor& weight) {
  check(x.dim() > 0 && weight.dim() == 1 && x.size(-1) == weight.size(0), name,
        ": expected x [..., hidden] and weight [hidden], got ", x.sizes(), " and ", weight.sizes());
  check(x.numel() > 0, name, ": empty input ", x.sizes());
  const auto dtype = x.scalar_type();
  check(at::isFloatingType(dtype), name, ": expected floating point, got ", dtype);
  check(dtype == weight.scalar_type(), name, ": x is ", dtype, ", weight is ", weight.scalar_type());
  check(x.device() == weight.device(), name, ": x is on ", x.device(), ", weight on ", weight.device());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_inputs("rms_norm", x, weight);
  return std::get<0>(rms_norm_with_rstd(x.contiguous(), weight.contiguous(), eps));
}

SumAndNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                        double eps) {
  check_inputs("add_rms_norm", x, weight);
  check_residual("add_rms_norm", x, residual);
  auto [sum, out, rstd] =
      add_rms_norm_with_rstd(x.contiguous(), residual.contiguous(), weight.contiguous(), eps);
  return {sum, out};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_with_rstd(const at::Tensor& x, const at::Tensor& weight,
                                                      double eps) {
  static const auto op = find_operator<decltype(rms_norm_with_rstd)>("snug::rms_norm");
  return op.call(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_with_rstd(const at::Tensor& x,
                                                                      const at::Tensor& residual,
                                                                      const at::Tensor& weight, double eps) {
  static const auto op = find_operator<decltype(add_rms_norm_with_rstd)>("snug::add_rms_norm");
  return op.call(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_out,
                                                     const std::optional<at::Tensor>& grad_sum,
                                                     const at::Tensor& x, const at::Tensor& weight,
                                                     const at::Tensor& rstd) {
  static const auto op = find_operator<decltype(rms_norm_backward)>("snug::rms_norm_backward");
  return op.call(grad_out, grad_sum, x, weight, rstd);
}

}  // namespace snug::ops
