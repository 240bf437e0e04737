#include "snug/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

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
    check(parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kBFloat16, "parameter ", i,
          " is ", parameter.scalar_type(), "; expected Float or BFloat16");
    check(parameter.is_contiguous(), "parameter ", i, " of shape ", parameter.sizes(),
          " is not contiguous; make it so before it goes to the optimizer");
    check(parameter.device() == parameters[0].device(), "parameter ", i, " is on ", parameter.device(),
          ", parameter 0 on ", parameters[0].device(), "; expected one device");
  }
}

// fp32 and strided like the weight: the fused CPU kernel reads gradients as if they were contiguous, without
// a check, and the CUDA one refuses strides that differ.
at::Tensor copied_like(const at::Tensor& weight, const at::Tensor& gradient) {
  return at::empty_like(weight).copy_(gradient);
}

}  // namespace

Optimizer::Optimizer(std::vector<at::Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr) {
  check_parameters(parameters_);
  check_not_negative(lr, "lr");
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    weights_.push_back(parameter.scalar_type() == at::kFloat ? parameter : parameter.to(at::kFloat));
  }
}

void Optimizer::step(double lr) {
  check_not_negative(lr, "lr");
  at::NoGradGuard no_grad;
  // Gradients that can be used as they are go to one call at the end; the others are copied, one alive at a
  // time.
  std::vector<std::size_t> which;
  std::vector<at::Tensor> ready;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    check(gradient.layout() == at::kStrided, "the gradient of parameter ", i, " is ", gradient.layout(),
          "; expected a dense one");
    const bool usable = gradient.scalar_type() == at::kFloat && gradient.strides() == weights_[i].strides();
    if (usable && !has_master(i)) {
      which.push_back(i);
      ready.push_back(gradient);
      continue;
    }
    update({i}, {copied_like(weights_[i], gradient)}, lr);
    if (has_master(i)) parameters_[i].copy_(weights_[i]);
  }
  if (!which.empty()) update(which, ready, lr);
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

std::vector<StateTensor> Optimizer::state() const {
  std::vector<StateTensor> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (has_master(i)) state.push_back({i, "master", weights_[i]});
  }
  return state;
}

std::uint64_t Optimizer::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const StateTensor& state : state()) bytes += state.tensor.nbytes();
  return bytes;
}

bool Optimizer::has_master(std::size_t i) const {
  return !weights_[i].is_same(parameters_[i]);
}

void check_not_negative(double value, const char* name) {
  check(std::isfinite(value) && value >= 0, name, " must be finite and at least 0, got ", value);
}

}  // namespace snug::optim
