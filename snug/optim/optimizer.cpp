#include "snug/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"

namespace snug::optim {
namespace {

void check_parameters(const std::vector<at::Tensor>& parameters) {
  check(!parameters.empty(), "an optimizer needs at least one parameter, got none");
  std::unordered_map<const void*, std::size_t> seen;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    check(parameter.defined(), "parameter ", i, " is undefined");
    const auto [first, is_new] = seen.emplace(parameter.unsafeGetTensorImpl(), i);
    check(is_new, "parameter ", i, " is parameter ", first->second, " again; give tied parameters once");
    const at::ScalarType type = parameter.scalar_type();
    check(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "parameter ", i, " is ", type,
          "; expected Float, BFloat16 or Half");
    check(parameter.is_contiguous(), "parameter ", i, " of shape ", parameter.sizes(),
          " is not contiguous; make it so before it goes to the optimizer");
    check(parameter.device() == parameters[0].device(), "parameter ", i, " is on ", parameter.device(),
          ", parameter 0 on ", parameters[0].device(), "; expected one device");
  }
}

at::Tensor make_master(const at::Tensor& parameter, Master master) {
  if (parameter.scalar_type() == at::kFloat) return parameter;
  if (parameter.scalar_type() == at::kBFloat16 && master == Master::Split)
    return at::zeros_like(parameter, at::TensorOptions(at::kShort).requires_grad(false));
  return parameter.to(at::kFloat);
}

bool is_usable(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.is_contiguous() &&
         (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == parameter.scalar_type());
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr, Master master)
    : parameters_(std::move(parameters)), lr_(lr) {
  check_parameters(parameters_);
  check_not_negative(lr, "lr");
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) masters_.push_back(make_master(parameter, master));
}

void Optimizer::step(double lr, const ops::UpdateControl& control) {
  check_not_negative(lr, "lr");
  at::NoGradGuard no_grad;
  std::vector<std::size_t> which;
  std::vector<at::Tensor> usable;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    check(gradient.layout() == at::kStrided, "the gradient of parameter ", i, " is ", gradient.layout(),
          "; expected a dense one");
    if (is_usable(gradient, parameters_[i])) {
      which.push_back(i);
      usable.push_back(gradient);
    } else {
      update({i}, {gradient.to(at::kFloat).contiguous()}, lr, control);
    }
  }
  if (!which.empty()) update(which, usable, lr, control);
}

void Optimizer::zero_grad() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

at::Tensor Optimizer::exact(std::size_t i) const {
  check(i < parameters_.size(), "no parameter ", i, " among ", parameters_.size());
  at::NoGradGuard no_grad;
  if (masters_[i].scalar_type() == at::kFloat) return masters_[i].clone();
  const at::Tensor high = parameters_[i].view(at::kShort).to(at::kInt).bitwise_left_shift_(16);
  return high.add_(masters_[i]).view(at::kFloat);
}

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (masters_[i].is_same(parameters_[i])) continue;
    state.push_back({i, masters_[i].scalar_type() == at::kShort ? "remainder" : "master", masters_[i]});
  }
  return state;
}

std::uint64_t Optimizer::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const StateTensor& state : state()) bytes += state.tensor.nbytes();
  return bytes;
}

ops::UpdateTensors Optimizer::tensors(const std::vector<std::size_t>& which,
                                      const std::vector<at::Tensor>& gradients) const {
  ops::UpdateTensors tensors{.gradients = gradients};
  for (const std::size_t i : which) {
    tensors.weights.push_back(parameters_[i]);
    tensors.masters.push_back(masters_[i]);
  }
  return tensors;
}

std::vector<at::Tensor> Optimizer::fp32_zeros() const {
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& parameter : parameters_)
    zeros.push_back(at::zeros_like(parameter, at::TensorOptions(at::kFloat).requires_grad(false)));
  return zeros;
}

void check_not_negative(double value, const char* name) {
  check(std::isfinite(value) && value >= 0, name, " must be finite and at least 0, got ", value);
}

}  // namespace snug::optim
