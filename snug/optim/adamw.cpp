#include "snug/optim/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "snug/base/error.h"

namespace snug::optim {
namespace {

void check_beta(double value, const char* name) {
  check(value >= 0 && value < 1, name, " must be at least 0 and below 1, got ", value);
}

// A step that is called off is not counted.
void add_one(const std::vector<at::Tensor>& steps, const std::optional<at::Tensor>& skip) {
  if (skip)
    at::_foreach_add_(steps, skip->eq(0).to(at::kFloat).view(at::IntArrayRef{}));
  else
    at::_foreach_add_(steps, 1);
}

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.lr, options.master, {"exp_avg", "exp_avg_sq"},
                options.placement),
      options_(options) {
  check_beta(options.beta1, "beta1");
  check_beta(options.beta2, "beta2");
  check_not_negative(options.eps, "eps");
  check_not_negative(options.weight_decay, "weight_decay");
  const at::Tensor& first = this->parameters()[0];
  const auto count = static_cast<std::int64_t>(this->parameters().size());
  all_steps_ = at::zeros({count}, at::TensorOptions(first.device()).dtype(at::kFloat));
  steps_ = all_steps_.unbind();
}

std::vector<StateTensor> AdamW::state() const {
  std::vector<StateTensor> state = Optimizer::state();
  for (std::size_t i = 0; i < steps_.size(); ++i) state.push_back({i, "step", steps_[i]});
  return state;
}

void AdamW::count_step(const std::vector<std::size_t>& which, const ops::UpdateControl& control) {
  std::vector<at::Tensor> steps;
  for (const std::size_t i : which) steps.push_back(steps_[i]);
  add_one(steps, control.skip);
}

void AdamW::update(const std::vector<Part>& parts, double lr, const ops::UpdateControl& control) {
  for (const bool decaying : {true, false}) {
    std::vector<Part> some;
    for (const Part& part : parts)
      if (decays(part.parameter) == decaying) some.push_back(part);
    if (some.empty()) continue;
    ops::AdamWTensors tensors{tensors_of(some)};
    for (const Part& part : some) {
      tensors.exp_avgs.push_back(part.moments[0]);
      tensors.exp_avg_sqs.push_back(part.moments[1]);
      tensors.steps.push_back(part.numbers.defined() ? part.numbers : steps_[part.parameter]);
    }
    ops::adamw_(tensors,
                {.lr = lr,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .weight_decay = decaying ? options_.weight_decay : 0,
                 .eps = options_.eps},
                control);
  }
}

at::Tensor AdamW::numbers_of_step() const {
  return ops::adamw_corrections(all_steps_, {.beta1 = options_.beta1, .beta2 = options_.beta2});
}

bool AdamW::decays(std::size_t i) const {
  return !options_.decay_matrices_only || parameters()[i].dim() >= 2;
}

}  // namespace snug::optim
