#include "snug/optim/sgd.h"

#include <utility>

namespace snug::optim {

Sgd::Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.lr, options.master), options_(options) {
  check_not_negative(options.momentum, "momentum");
  check_not_negative(options.weight_decay, "weight_decay");
  if (options.momentum != 0) momenta_ = fp32_zeros();
}

std::vector<StateTensor> Sgd::state() const {
  std::vector<StateTensor> state = Optimizer::state();
  for (std::size_t i = 0; i < momenta_.size(); ++i) state.push_back({i, "momentum_buffer", momenta_[i]});
  return state;
}

void Sgd::update(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients, double lr,
                 const ops::UpdateControl& control) {
  ops::SgdTensors tensors{Optimizer::tensors(which, gradients)};
  if (!momenta_.empty())
    for (const std::size_t i : which) tensors.momenta.push_back(momenta_[i]);
  ops::sgd_(tensors, {.lr = lr, .momentum = options_.momentum, .weight_decay = options_.weight_decay},
            control);
}

}  // namespace snug::optim
