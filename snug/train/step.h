// One optimizer step: forward and backward of every micro-batch, clip, update. Runs on CPU, CUDA and Meta
// alike: the same code is measured and predicted.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>

#include "snug/base/export.h"
#include "snug/io/token_dataset.h"
#include "snug/models/language_model.h"
#include "snug/optim/host_parameters.h"
#include "snug/optim/optimizer.h"
#include "snug/session/step.h"
#include "snug/train/captured_passes.h"
#include "snug/train/config.h"
#include "snug/zero/sharding.h"

namespace snug::train {

SNUG_API std::unique_ptr<optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                          const OptimizerConfig& config,
                                                          const optim::Placement& placement = {});

// The tokens of a run; one outside the model's vocabulary is an Error.
SNUG_API io::TokenDataset open_data(const TrainConfig& config);

// Throws Error unless config.weights, if any, hold the model that config.json describes; those of a training
// state must be what was written.
SNUG_API void check_weights(const TrainConfig& config);

// The model of a run, with its weights if it has any; on Meta without. `there` takes some of its parameters,
// or `sharding` all of them.
SNUG_API std::shared_ptr<models::LanguageModel> load_model(const TrainConfig& config, c10::Device device,
                                                           optim::HostParameters* there = nullptr,
                                                           zero::Sharding* sharding = nullptr);

// Model and optimizer on one device, their memory claimed.
struct SNUG_API TrainingSetup {
  // `group`: of config.ranks; null: imagined.
  TrainingSetup(const TrainConfig& config, c10::Device device, const Account& account,
                std::shared_ptr<zero::Group> group = nullptr);
  std::shared_ptr<optim::HostParameters> there;  // null: all is on the device. Goes after the model
  std::shared_ptr<zero::Sharding> sharding;      // null: this process trains by itself
  std::shared_ptr<models::LanguageModel> model;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// Adds the gradients of the whole batch, micro-batch by micro-batch, and returns the loss. That is `scale`
// times the sum over all targets, whatever the split, so the gradients do not depend on it.
SNUG_API at::Tensor accumulate_gradients(models::LanguageModel& model, const io::Batch& batch,
                                         const TrainConfig& config, double scale,
                                         const std::function<void()>& before_last = {});

// Scalars on the device.
struct StepResult {
  at::Tensor loss;           // mean over the global batch's targets
  at::Tensor gradient_norm;  // before clipping; with a loss scale: if it is not finite, nothing was updated
  at::Tensor stops;          // how many ranks want to stop after this step; undefined without ranks
};

struct StepInputs {
  const io::Batch& batch;
  std::int64_t target_count = 0;  // targets that are not -100
  double lr = 0;
  bool stops = false;  // this rank wants to stop after this step
  // The gradients are so many times too large until they are used. With one, even of 1, gradients that are
  // not finite are not used at all.
  std::optional<double> loss_scale;
  std::function<void(const std::vector<at::Tensor>&)> on_gradients;  // before they are used
  CapturedPasses* captured = nullptr;                                // may run the passes as a graph
  // When they are known and nothing is updated yet: what is copied to the host now waits for no state.
  std::function<void(const StepResult&)> on_result;
};

// The whole step; gradients are freed at its end.
SNUG_API StepResult run_step(TrainingSetup& setup, const StepInputs& inputs, const TrainConfig& config,
                             const Account& account);

// Of many micro-batches two or three, which need as much as all of them.
SNUG_API void run_meta_step(TrainingSetup& setup, const TrainConfig& config, const Account& account);

SNUG_API std::int64_t count_targets(const at::Tensor& targets);

}  // namespace snug::train
