// The same code on every device: all the work is in matrix products.
#include "snug/ops/project.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "snug/base/error.h"
#include "snug/ops/gradient_buffer.h"
#include "snug/ops/operator.h"
#include "snug/ops/product.h"
#include "snug/ops/sum_rows.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

std::vector<at::Tensor> call_project(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                     bool in_out) {
  static const auto op = find_operator<decltype(call_project)>("snug::project");
  return op.call(x, weights, biases, in_out);
}

at::Tensor call_project_backward(at::TensorList grads, at::TensorList weights, bool in_out) {
  static const auto op = find_operator<decltype(call_project_backward)>("snug::project_backward");
  return op.call(grads, weights, in_out);
}

// Undefined if it went where it belongs.
at::Tensor weight_gradient(GradientTarget target, const at::Tensor& left, const at::Tensor& right) {
  if (target.sum.defined()) return add_product(target.sum, left, right), at::Tensor();
  return product_as(target.dtype == at::kFloat ? at::kFloat : left.scalar_type(), left, right);
}

class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, bool in_out) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);  // a projection that nobody used adds nothing
    context->saved_data["in_out"] = in_out;
    context->saved_data["has_biases"] = !biases.empty();
    return call_project(x, weights, biases, in_out);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const bool in_out = context->saved_data["in_out"].toBool();
    const bool has_biases = context->saved_data["has_biases"].toBool();
    const at::Tensor rows = as_rows(saved[0]);
    const std::size_t count = grads.size();
    variable_list used, weights, results(1 + count * (has_biases ? 2 : 1) + 1);
    for (std::size_t i = 0; i < count; ++i) {
      if (!grads[i].defined()) continue;
      const at::Tensor& grad = used.emplace_back(as_rows(grads[i]));
      weights.push_back(saved[1 + i]);
      const std::size_t weight = 1 + i, bias = 1 + count + i;
      if (context->needs_input_grad(weight))
        results[weight] = in_out ? weight_gradient(gradient_target(weight), rows.t(), grad)
                                 : weight_gradient(gradient_target(weight), grad.t(), rows);
      if (has_biases && context->needs_input_grad(bias))
        results[bias] = sum_rows(grad, gradient_target(bias).dtype.value_or(grad.scalar_type()));
    }
    if (context->needs_input_grad(0) && !used.empty())
      results[0] = call_project_backward(used, weights, in_out).view(saved[0].sizes());
    return results;
  }
};

std::vector<at::Tensor> differentiable_project(const at::Tensor& x, at::TensorList weights,
                                               at::TensorList biases, bool in_out) {
  return ProjectFunction::apply(x, weights, biases, in_out);
}

std::vector<at::Tensor> project_rows(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                     bool in_out) {
  const at::Tensor rows = as_rows(x);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor factor = in_out ? weights[i] : weights[i].t();
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = factor.size(1);
    results.push_back(product(rows, factor, biases.empty() ? at::Tensor() : biases[i]).view(sizes));
  }
  return results;
}

at::Tensor add_products(at::TensorList grads, at::TensorList weights, bool in_out) {
  const auto factor = [&](std::size_t i) { return in_out ? weights[i].t() : weights[i]; };
  at::Tensor sum = product(grads[0], factor(0));
  for (std::size_t i = 1; i < grads.size(); ++i) add_product(sum, grads[i], factor(i));
  return sum;
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("project(Tensor x, Tensor[] weights, Tensor[] biases, bool in_out) -> Tensor[]");
  library.def("project_backward(Tensor[] grads, Tensor[] weights, bool in_out) -> Tensor");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("project", TORCH_FN(project_rows));
  library.impl("project_backward", TORCH_FN(add_products));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("project", TORCH_FN(differentiable_project));
  library.impl("project_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::vector<at::Tensor> project(const at::Tensor& x, at::TensorList weights, at::TensorList biases,
                                WeightLayout layout) {
  const bool in_out = layout == WeightLayout::InOut;
  check(!weights.empty(), "project: no weights were given");
  check(biases.empty() || biases.size() == weights.size(), "project: expected a bias for each of ",
        weights.size(), " weights or none, got ", biases.size());
  check(x.dim() > 0 && x.numel() > 0, "project: expected x [..., in], not empty, got ", x.sizes());
  const auto check_kind = [&](const at::Tensor& tensor, const char* what) {
    check(tensor.scalar_type() == x.scalar_type() && tensor.device() == x.device(), "project: x is ",
          x.scalar_type(), " on ", x.device(), ", a ", what, " is ", tensor.scalar_type(), " on ",
          tensor.device());
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& weight = weights[i];
    check(weight.dim() == 2 && weight.size(in_out ? 0 : 1) == x.size(-1), "project: x ", x.sizes(),
          " needs weights ", in_out ? "[in, out]" : "[out, in]", " with in = ", x.size(-1), ", got ",
          weight.sizes());
    check_kind(weight, "weight");
    if (biases.empty()) continue;
    check(biases[i].dim() == 1 && biases[i].size(0) == weight.size(in_out ? 1 : 0), "project: a weight ",
          weight.sizes(), " does not go with a bias ", biases[i].sizes());
    check_kind(biases[i], "bias");
  }
  return call_project(x, weights, biases, in_out);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  WeightLayout layout) {
  return project(x, {weight}, bias.defined() ? at::TensorList(bias) : at::TensorList(), layout)[0];
}

at::Tensor project_backward(at::TensorList grads, at::TensorList weights, WeightLayout layout) {
  return call_project_backward(grads, weights, layout == WeightLayout::InOut);
}

}  // namespace snug::ops
