// The same code on every device: all the work is in matrix products.
#include "snug/ops/project.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/meta_target.h"
#include "snug/ops/gradient_buffer.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

std::vector<at::Tensor> call_project(const at::Tensor& x, at::TensorList weights) {
  static const auto op = find_operator<decltype(call_project)>("snug::project");
  return op.call(x, weights);
}

// Of halves into fp32: only cuBLAS does so at once.
bool widens_at_once(const at::Tensor& factor) {
  return factor.is_cuda() && at::isReducedFloatingType(factor.scalar_type());
}

at::Tensor fp32_product(const at::Tensor& left, const at::Tensor& right) {
  return widens_at_once(left) ? at::mm(left, right, at::kFloat) : at::mm(left, right).to(at::kFloat);
}

void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  if (sum.scalar_type() == left.scalar_type())
    sum.addmm_(left, right);
  else if (sum.scalar_type() == at::kFloat && widens_at_once(left))
    at::addmm_out(sum, sum, left, right, sum.scalar_type());
  else
    sum.add_(at::mm(left, right));
}

// Undefined if it went where it belongs.
at::Tensor weight_gradient(GradientTarget target, const at::Tensor& left, const at::Tensor& right) {
  if (target.sum.defined()) return add_product(target.sum, left, right), at::Tensor();
  const bool widens = target.dtype == at::kFloat && left.scalar_type() != at::kFloat;
  return widens ? fp32_product(left, right) : at::mm(left, right);
}

class ProjectFunction : public torch::autograd::Function<ProjectFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);  // a projection that nobody used adds nothing
    return call_project(x, weights);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor rows = as_rows(saved[0]);
    variable_list used, weights, results(saved.size());
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      used.push_back(as_rows(grads[i]));
      weights.push_back(saved[i + 1]);
      if (context->needs_input_grad(i + 1))
        results[i + 1] = weight_gradient(gradient_target(i + 1), used.back().t(), rows);
    }
    if (context->needs_input_grad(0) && !used.empty())
      results[0] = project_backward(used, weights).view(saved[0].sizes());
    return results;
  }
};

std::vector<at::Tensor> differentiable_project(const at::Tensor& x, at::TensorList weights) {
  return ProjectFunction::apply(x, weights);
}

std::vector<at::Tensor> project_rows(const at::Tensor& x, at::TensorList weights) {
  const at::Tensor rows = as_rows(x);
  std::vector<at::Tensor> results;
  for (const at::Tensor& weight : weights) {
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    results.push_back(at::mm(rows, weight.t()).view(sizes));
    if (x.is_meta()) hooks::after_product_on_meta();
  }
  return results;
}

at::Tensor add_products(at::TensorList grads, at::TensorList weights) {
  at::Tensor sum = at::mm(grads[0], weights[0]);
  if (sum.is_meta()) hooks::after_product_on_meta();
  for (std::size_t i = 1; i < grads.size(); ++i) sum.addmm_(grads[i], weights[i]);
  return sum;
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("project(Tensor x, Tensor[] weights) -> Tensor[]");
  library.def("project_backward(Tensor[] grads, Tensor[] weights) -> Tensor");
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

std::vector<at::Tensor> project(const at::Tensor& x, at::TensorList weights) {
  check(!weights.empty(), "project: no weights were given");
  check(x.dim() > 0 && x.numel() > 0, "project: expected x [..., in], not empty, got ", x.sizes());
  for (const at::Tensor& weight : weights) {
    check(weight.dim() == 2 && weight.size(1) == x.size(-1), "project: x ", x.sizes(),
          " needs weights [out, ", x.size(-1), "], got ", weight.sizes());
    check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(), "project: x is ",
          x.scalar_type(), " on ", x.device(), ", a weight is ", weight.scalar_type(), " on ",
          weight.device());
  }
  return call_project(x, weights);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  return project(x, {weight})[0];
}

at::Tensor project_backward(at::TensorList grads, at::TensorList weights) {
  static const auto op = find_operator<decltype(project_backward)>("snug::project_backward");
  return op.call(grads, weights);
}

}  // namespace snug::ops
