// The decayed gradient g + decay * w is never made: its two terms are added one after the other, so that no
// temporary of a parameter's size is needed.
#include "snug/optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace snug::optim {

Sgd::Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  check_not_negative(options.momentum, "momentum");
  check_not_negative(options.weight_decay, "weight_decay");
  if (options.momentum == 0) return;
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < this->parameters().size(); ++i) momenta_.push_back(at::zeros_like(weight(i)));
}

std::vector<StateTensor> Sgd::state() const {
  std::vector<StateTensor> state = Optimizer::state();
  for (std::size_t i = 0; i < momenta_.size(); ++i) state.push_back({i, "momentum_buffer", momenta_[i]});
  return state;
}

void Sgd::update(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients, double lr) {
  for (std::size_t place = 0; place < which.size(); ++place) {
    const at::Tensor& weight = this->weight(which[place]);
    if (momenta_.empty()) {
      if (options_.weight_decay != 0) weight.mul_(1 - lr * options_.weight_decay);
      weight.add_(gradients[place], -lr);
      continue;
    }
    const at::Tensor& momentum = momenta_[which[place]];
    momentum.mul_(options_.momentum).add_(gradients[place]);
    if (options_.weight_decay != 0) momentum.add_(weight, options_.weight_decay);
    weight.add_(momentum, -lr);
  }
}

}  // namespace snug::optim
