// Loss scaling for fp16, whose gradients would otherwise vanish: torch.amp.GradScaler in C++, with its
// semantics and the keys of its state.
//
//   GradScaler scaler(at::kCUDA);
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);             // only to look at the gradients or to clip them
//   scaler.step(optimizer);                 // not taken if a gradient is infinite or NaN
//   scaler.update();
//
// An optimizer is a torch::optim one or anything with gradients() and step(). One that has
// step_unscaled(factor, skip), as snug's have, unscales in fp32 on the way and may have fp16 gradients;
// unscaling those in place would lose what the scale has saved, so that is refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"

namespace snug {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps without overflow before the scale grows
  bool enabled = true;                  // false: every call passes through
};

class SNUG_API GradScaler {
 public:
  explicit GradScaler(c10::Device device, const GradScalerOptions& options = {});
  GradScaler(const GradScaler&) = delete;  // two would share one scale
  GradScaler& operator=(const GradScaler&) = delete;

  at::Tensor scale(const at::Tensor& loss) const;

  template <class Optimizer>
  void unscale_(Optimizer& optimizer) {
    unscale(&optimizer, gradients_of(optimizer));
  }

  // Returns whether the step was taken, for which it waits for the device.
  template <class Optimizer>
  bool step(Optimizer& optimizer) {
    if (!options_.enabled) return optimizer.step(), true;
    const Stage stage = stage_before_step(&optimizer);
    if constexpr (requires { optimizer.step_unscaled(scale_, scale_); }) {
      if (stage == Stage::Ready) {
        const at::Tensor found_inf = find_non_finite(gradients_of(optimizer));
        stages_[&optimizer] = {Stage::Stepped, {found_inf}};
        optimizer.step_unscaled(inverse_scale().to(found_inf.device()), found_inf);
        return !overflowed(&optimizer);
      }
    }
    if (stage == Stage::Ready) find_and_unscale(&optimizer, gradients_of(optimizer));
    stages_[&optimizer].stage = Stage::Stepped;
    if (overflowed(&optimizer)) return false;
    optimizer.step();
    return true;
  }

  void update();
  void update(double new_scale);

  // For a loop that does all of it on its own, without waiting: what to multiply gradients by, and to tell
  // whether they were finite (an fp32 scalar, 0 if they were).
  at::Tensor inverse_scale() const;
  void note_overflow(const void* optimizer, const at::Tensor& found_inf);

  bool is_enabled() const { return options_.enabled; }
  double get_scale() const;  // waits for the device
  Json state() const;        // scale, growth_factor, backoff_factor, growth_interval, _growth_tracker
  void load_state(const Json& state);

 private:
  enum class Stage { Ready, Unscaled, Stepped };
  struct PerOptimizer {
    Stage stage = Stage::Ready;
    std::vector<at::Tensor> found_inf;  // one per device
  };

  static std::vector<at::Tensor> gradients_of(torch::optim::Optimizer& optimizer);
  template <class Optimizer>
  requires requires(Optimizer& optimizer) { optimizer.gradients(); }
  static std::vector<at::Tensor> gradients_of(Optimizer& optimizer) { return optimizer.gradients(); }

  void unscale(const void* optimizer, const std::vector<at::Tensor>& gradients);
  void find_and_unscale(const void* optimizer, const std::vector<at::Tensor>& gradients);
  static at::Tensor find_non_finite(const std::vector<at::Tensor>& gradients);
  Stage stage_before_step(const void* optimizer);
  bool overflowed(const void* optimizer);

  GradScalerOptions options_;
  at::Tensor scale_, growth_tracker_;
  std::unordered_map<const void*, PerOptimizer> stages_;
};

}  // namespace snug
