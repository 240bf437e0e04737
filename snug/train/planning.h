// What a training step is to a session: its settings, how to run it on Meta, what its plans say it is.
//
//   PlannedStep planned = plan_step(make_step(config), {.budget_bytes = 12_GiB});
//   take(planned.plan, config);
//   train(config);
#pragma once

#include <vector>

#include "snug/base/export.h"
#include "snug/machine/operator_probe.h"
#include "snug/plan/cost.h"
#include "snug/plan/hardware.h"
#include "snug/session/plan_step.h"
#include "snug/session/predict.h"
#include "snug/session/verify.h"
#include "snug/train/config.h"

namespace snug::train {

// `micro_batches`: sequences per forward to choose from, the plain step's first; empty: every divisor of the
// batch. `stepping`: the host of this hardware steps as many of the parameters whose states it has as it can
// while the others stream; null: config.stepped_on_host.
SNUG_API Step make_step(const TrainConfig& config, const std::vector<std::int64_t>& micro_batches = {},
                        const plan::Hardware* stepping = nullptr);

// The run under this plan, within its budget.
SNUG_API void take(plan::Plan plan, TrainConfig& config);

// Throws Error unless the plan is for this step and this model, region by region.
SNUG_API void check_plan(const plan::Plan& plan, const TrainConfig& config);

// The step under this setting.
SNUG_API TrainConfig at_setting(TrainConfig config, const plan::Setting& setting);
// As it is configured.
SNUG_API Prediction predict(const TrainConfig& config, const PredictOptions& options = {});
// The same with the most sequences per forward that the budget holds.
SNUG_API Tuned tune(const TrainConfig& config, std::uint64_t budget_bytes,
                    const PredictOptions& options = {});

// The first batch of the data, with config.plan or config.recompute, at config's split of the batch.
SNUG_API Verified verify(const TrainConfig& config);

// So many steps for their time alone: of the same sizes and under the same plan, on fresh weights and made-up
// tokens.
SNUG_API TrainConfig without_meaning(TrainConfig config, std::int64_t steps);

// So many of those, and then one that is timed operator by operator.
SNUG_API std::vector<plan::MeasuredOperator> time_operators(const TrainConfig& config,
                                                            std::int64_t warm_up = 2);
SNUG_API plan::MeasuredCosts measure_costs(const TrainConfig& config, const plan::Hardware& hardware);

// Steps of the model's first two layers in bf16, for the probe.
SNUG_API machine::RunSteps probe_steps(const models::ModelConfig& model, c10::Device device);

}  // namespace snug::train
