#include "snug/precision/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "snug/base/error.h"

namespace snug {
namespace {

void check_scale(double scale) {
  check(std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0,
        "GradScaler: the scale must be above 0 and fit fp32, got ", scale);
}

void check_options(const GradScalerOptions& options) {
  check_scale(options.init_scale);
  check(options.growth_factor > 1, "GradScaler: growth_factor must be above 1, got ", options.growth_factor);
  check(options.backoff_factor > 0 && options.backoff_factor < 1,
        "GradScaler: backoff_factor must be between 0 and 1, got ", options.backoff_factor);
  check(options.growth_interval >= 1, "GradScaler: growth_interval must be at least 1, got ",
        options.growth_interval);
}

}  // namespace

GradScaler::GradScaler(c10::Device device, const GradScalerOptions& options) : options_(options) {
  check_options(options);
  const auto on_device = at::TensorOptions(device);
  scale_ = at::full({}, options.init_scale, on_device.dtype(at::kFloat));
  growth_tracker_ = at::zeros({}, on_device.dtype(at::kInt));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss * scale_.to(loss.device()) : loss;
}

at::Tensor GradScaler::inverse_scale() const {
  if (!options_.enabled) return at::ones_like(scale_);
  return scale_.to(at::kDouble).reciprocal().to(at::kFloat);
}

void GradScaler::unscale(const void* optimizer, const std::vector<at::Tensor>& gradients) {
  if (!options_.enabled) return;
  PerOptimizer& state = stages_[optimizer];
  check(state.stage != Stage::Unscaled, "unscale_() was called twice for this optimizer since update()");
  check(state.stage != Stage::Stepped, "unscale_() after step(): call it before, and update() in between");
  find_and_unscale(optimizer, gradients);
  state.stage = Stage::Unscaled;
}

void GradScaler::find_and_unscale(const void* optimizer, const std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> groups;
  for (const at::Tensor& gradient : gradients) {
    check(gradient.layout() == at::kStrided, "GradScaler: a gradient is ", gradient.layout(),
          "; expected a dense one");
    check(gradient.scalar_type() != at::kHalf,
          "GradScaler: unscaling fp16 gradients in place would lose what the scale has saved; use fp32 "
          "parameters under Autocast, or an optimizer with step_unscaled()");
    groups[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
  }
  check(!groups.empty(), "GradScaler: the optimizer has no gradients: call backward() first");
  for (auto& [kind, group] : groups) {
    const at::Device device = group[0].device();
    at::Tensor found_inf = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
    const at::Tensor inverse = inverse_scale().to(device);
    if (kind.second == at::kBFloat16) {  // for which torch has no kernel on CUDA
      found_inf = find_non_finite(group);
      for (at::Tensor& gradient : group) {
        // With as many dimensions as the gradient the factor is not rounded to bf16 first.
        gradient.mul_(inverse.view(std::vector<std::int64_t>(static_cast<std::size_t>(gradient.dim()), 1)));
      }
    } else {
      at::_amp_foreach_non_finite_check_and_unscale_(group, found_inf, inverse);
    }
    stages_[optimizer].found_inf.push_back(found_inf);
  }
}

at::Tensor GradScaler::find_non_finite(const std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  check(!gradients.empty(), "GradScaler: the optimizer has no gradients: call backward() first");
  const double largest = std::numeric_limits<double>::infinity();  // the norm's order
  std::vector<at::Tensor> some;
  for (const at::Tensor& gradient : gradients)
    if (gradient.numel() > 0) some.push_back(gradient);
  if (some.empty()) return at::zeros({}, gradients[0].options().dtype(at::kFloat));
  const at::Tensor norms = at::stack(at::_foreach_norm(some, largest, at::kFloat));
  return at::isfinite(norms).all().logical_not_().to(at::kFloat);
}

GradScaler::Stage GradScaler::stage_before_step(const void* optimizer) {
  const Stage stage = stages_[optimizer].stage;
  check(stage != Stage::Stepped, "step() was called twice for this optimizer since update()");
  return stage;
}

bool GradScaler::overflowed(const void* optimizer) {
  for (const at::Tensor& found_inf : stages_[optimizer].found_inf)
    if (found_inf.item<float>() != 0) return true;
  return false;
}

void GradScaler::note_overflow(const void* optimizer, const at::Tensor& found_inf) {
  if (!options_.enabled) return;
  stage_before_step(optimizer);
  stages_[optimizer] = {Stage::Stepped, {found_inf}};
}

void GradScaler::update() {
  if (!options_.enabled) return;
  at::Tensor found_inf = at::zeros({}, scale_.options());
  bool any = false;
  for (const auto& [optimizer, state] : stages_)
    for (const at::Tensor& found : state.found_inf) {
      found_inf.add_(found.to(scale_.device()));
      any = true;
    }
  check(any, "GradScaler: update() without a step() or unscale_() since the last one");
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  stages_.clear();
}

void GradScaler::update(double new_scale) {
  check_scale(new_scale);
  if (!options_.enabled) return;
  scale_.fill_(new_scale);
  stages_.clear();
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<double>() : 1;
}

Json GradScaler::state() const {
  if (!options_.enabled) return Json::object();
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", growth_tracker_.item<std::int64_t>()}};
}

void GradScaler::load_state(const Json& state) {
  if (!options_.enabled) return;
  for (const char* key : {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"})
    check(state.is_object() && state.contains(key) && state[key].is_number(),
          "GradScaler: the state has no number \"", key,
          "\": it may be that of a scaler that was not enabled");
  const GradScalerOptions loaded{.init_scale = state["scale"],
                                 .growth_factor = state["growth_factor"],
                                 .backoff_factor = state["backoff_factor"],
                                 .growth_interval = state["growth_interval"]};
  check_options(loaded);
  options_ = loaded;
  scale_.fill_(loaded.init_scale);
  growth_tracker_.fill_(state["_growth_tracker"].get<std::int64_t>());
}

std::vector<at::Tensor> GradScaler::gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace snug
