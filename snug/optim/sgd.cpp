#include "snug/optim/sgd.h"

#include <utility>

namespace snug::optim {

Sgd::Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options)
    : Optimizer(
          std::move(parameters), options.lr, options.master,
          options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{},
          options.placement),
      options_(options) {
  check_not_negative(options.momentum, "momentum");
  check_not_negative(options.weight_decay, "weight_decay");
}

void Sgd::update(const std::vector<Part>& parts, double lr, const ops::UpdateControl& control) {
  ops::SgdTensors tensors{tensors_of(parts)};
  for (const Part& part : parts)
    if (!part.moments.empty()) tensors.momenta.push_back(part.moments[0]);
  ops::sgd_(tensors, {.lr = lr, .momentum = options_.momentum, .weight_decay = options_.weight_decay},
            control);
}

}  // namespace snug::optim
