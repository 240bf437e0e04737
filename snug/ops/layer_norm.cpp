// Schema, derivative and checked front of layer_norm; the kernels are in layer_norm_{cpu,cuda}.cpp.
#include "snug/ops/layer_norm.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, mean, rstd] = layer_norm_with_statistics(x, weight, bias, eps);
    context->save_for_backward({x, weight, mean, rstd});
    context->saved_data["has_bias"] = bias.has_value();
    context->mark_non_differentiable({mean, rstd});
    context->set_materialize_grads(false);
    return {out, mean, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight, grad_bias] =
        layer_norm_backward(grads[0].contiguous(), std::nullopt, saved[0], saved[1], saved[2], saved[3],
                            context->saved_data["has_bias"].toBool());
    return {grad_x, grad_weight, grad_bias, {}};
  }
};

class AddLayerNormFunction : public torch::autograd::Function<AddLayerNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [sum, out, mean, rstd] = add_layer_norm_with_statistics(x, residual, weight, bias, eps);
    context->save_for_backward({sum, weight, mean, rstd});
    context->saved_data["has_bias"] = bias.has_value();
    context->mark_non_differentiable({mean, rstd});
    context->set_materialize_grads(false);
    return {sum, out, mean, rstd};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[1].defined()) return {grads[0], grads[0], {}, {}, {}};  // only the sum was used
    const auto saved = context->get_saved_variables();
    const std::optional<at::Tensor> grad_sum =
        grads[0].defined() ? std::optional(grads[0].contiguous()) : std::nullopt;
    auto [grad_x, grad_weight, grad_bias] =
        layer_norm_backward(grads[1].contiguous(), grad_sum, saved[0], saved[1], saved[2], saved[3],
                            context->saved_data["has_bias"].toBool());
    return {grad_x, grad_x, grad_weight, grad_bias, {}};
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiable_layer_norm(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps) {
  auto results = LayerNormFunction::apply(x, weight, bias, eps);
  return {results[0], results[1], results[2]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> differentiable_add_layer_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, double eps) {
  auto results = AddLayerNormFunction::apply(x, residual, weight, bias, eps);
  return {results[0], results[1], results[2], results[3]};
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor out, Tensor mean, Tensor "
      "rstd)");
  library.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps) -> (Tensor sum, "
      "Tensor out, Tensor mean, Tensor rstd)");
  library.def(
      "layer_norm_backward(Tensor grad_out, Tensor? grad_sum, Tensor x, Tensor weight, Tensor mean, Tensor "
      "rstd, bool has_bias) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("layer_norm", TORCH_FN(differentiable_layer_norm));
  library.impl("add_layer_norm", TORCH_FN(differentiable_add_layer_norm));
  library.impl("layer_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

void check_is_like_a_row(const char* op, const at::Tensor& x, const char* name, const at::Tensor& parameter) {
  check(parameter.dim() == 1 && parameter.size(0) == x.size(-1), op, ": expected ", name, " [", x.size(-1),
        "] for x ", x.sizes(), ", got ", parameter.sizes());
  check(parameter.scalar_type() == x.scalar_type(), op, ": x is ", x.scalar_type(), ", ", name, " is ",
        parameter.scalar_type());
  check(parameter.device() == x.device(), op, ": x is on ", x.device(), ", ", name, " on ",
        parameter.device());
}

// The bias as the operators take it.
std::optional<at::Tensor> check_inputs(const char* op, const at::Tensor& x, const at::Tensor& weight,
                                       const std::optional<at::Tensor>& bias) {
  check(x.dim() > 0 && x.numel() > 0, op, ": expected x [..., hidden] that is not empty, got ", x.sizes());
  check(at::isFloatingType(x.scalar_type()), op, ": expected floating point, got ", x.scalar_type());
  check_is_like_a_row(op, x, "weight", weight);
  if (!bias || !bias->defined()) return std::nullopt;
  check_is_like_a_row(op, x, "bias", *bias);
  return bias->contiguous();
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      double eps) {
  const std::optional<at::Tensor> shift = check_inputs("layer_norm", x, weight, bias);
  return std::get<0>(layer_norm_with_statistics(x.contiguous(), weight.contiguous(), shift, eps));
}

SumAndNorm add_layer_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, double eps) {
  const std::optional<at::Tensor> shift = check_inputs("add_layer_norm", x, weight, bias);
  check_residual("add_layer_norm", x, residual);
  auto [sum, out, mean, rstd] =
      add_layer_norm_with_statistics(x.contiguous(), residual.contiguous(), weight.contiguous(), shift, eps);
  return {sum, out};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_with_statistics(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps) {
  static const auto op = find_operator<decltype(layer_norm_with_statistics)>("snug::layer_norm");
  return op.call(x, weight, bias, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> add_layer_norm_with_statistics(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, double eps) {
  static const auto op = find_operator<decltype(add_layer_norm_with_statistics)>("snug::add_layer_norm");
  return op.call(x, residual, weight, bias, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x,
    const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& rstd, bool has_bias) {
  check_is_like_a_row("layer_norm_backward", x, "weight", weight);
  const std::int64_t rows = x.numel() / x.size(-1);
  const auto is_like_x = [&](const at::Tensor& grad) {
    return grad.sizes() == x.sizes() && grad.scalar_type() == x.scalar_type() && grad.is_contiguous();
  };
  check(is_like_x(grad_out) && (!grad_sum || is_like_x(*grad_sum)) && x.is_contiguous() &&
            mean.numel() == rows && rstd.numel() == rows,
        "layer_norm_backward: x is ", x.sizes(), " ", x.scalar_type(),
        "; expected contiguous gradients like it and a mean and rstd per row, got ", grad_out.sizes(), " ",
        grad_out.scalar_type(), ", ", mean.sizes(), " and ", rstd.sizes());
  static const auto op = find_operator<decltype(layer_norm_backward)>("snug::layer_norm_backward");
  return op.call(grad_out, grad_sum, x, weight, mean, rstd, has_bias);
}

}  // namespace snug::ops
