#include "snug/session/step.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "snug/session/state_park.h"

namespace snug {

void Account::step(const AnyOptimizer& optimizer) const {
  park_ ? park_->step(optimizer) : optimizer.step();
}

void Account::park(const AnyOptimizer& optimizer) const {
  if (park_) park_->park(optimizer);
}

void Account::unpark(const AnyOptimizer& optimizer, ReadStates where) const {
  if (park_) park_->unpark(optimizer, where);
}

Json identity_of(const Step& step) {
  Json identity = {{"torch", TORCH_VERSION},
                   {"device", step.device.is_cuda() ? "cuda" : "cpu"},
                   {"threads", step.device.is_cuda() ? 0 : at::get_num_threads()}};
  identity.update(step.identity);
  return identity;
}

}  // namespace snug
