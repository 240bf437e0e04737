#include "snug/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "snug/base/error.h"

namespace snug::optim {
namespace {

// The argument lists of one fused call.
struct Group {
  std::vector<at::Tensor> weights, gradients, exp_avgs, exp_avg_sqs, steps;
};

void check_beta(double value, const char* name) {
  check(value >= 0 && value < 1, name, " must be at least 0 and below 1, got ", value);
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {
  check_beta(options.beta1, "beta1");
  check_beta(options.beta2, "beta2");
  check_not_negative(options.eps, "eps");
  check_not_negative(options.weight_decay, "weight_decay");
  at::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(this->parameters().size());
  steps_ = at::zeros({count}, weight(0).options().requires_grad(false)).unbind();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    exp_avgs_.push_back(at::zeros_like(weight(i)));
    exp_avg_sqs_.push_back(at::zeros_like(weight(i)));
  }
}

std::vector<StateTensor> AdamW::state() const {
  std::vector<StateTensor> state = Optimizer::state();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    state.push_back({i, "exp_avg", exp_avgs_[i]});
    state.push_back({i, "exp_avg_sq", exp_avg_sqs_[i]});
    state.push_back({i, "step", steps_[i]});
  }
  return state;
}

void AdamW::update(const std::vector<std::size_t>& which, const std::vector<at::Tensor>& gradients,
                   double lr) {
  Group decaying, still;
  for (std::size_t place = 0; place < which.size(); ++place) {
    const std::size_t i = which[place];
    Group& group = decays(i) ? decaying : still;
    group.weights.push_back(weight(i));
    group.gradients.push_back(gradients[place]);
    group.exp_avgs.push_back(exp_avgs_[i]);
    group.exp_avg_sqs.push_back(exp_avg_sqs_[i]);
    group.steps.push_back(steps_[i]);
  }
  for (const auto& [group, decay] : {std::pair{&decaying, options_.weight_decay}, std::pair{&still, 0.0}}) {
    if (group->weights.empty()) continue;
    at::_foreach_add_(group->steps, 1);  // the kernel reads the count of this step
    at::_fused_adamw_(group->weights, group->gradients, group->exp_avgs, group->exp_avg_sqs, {}, group->steps,
                      lr, options_.beta1, options_.beta2, decay, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
}

bool AdamW::decays(std::size_t i) const {
  return !options_.decay_matrices_only || weight(i).dim() >= 2;
}

}  // namespace snug::optim
