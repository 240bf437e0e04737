// Plans for training steps.
//
//   plan::Planner planner = make_planner(config, {.hardware = plan::preset("h200")});
//   plan::Decision decision = decide(planner, config, plan::preset("h200"), 12_GiB);
//   take(planner.write_down(decision, about_step(config)), config);
//   config.budget_bytes = decision.budget_bytes;
#pragma once

#include <optional>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/cost.h"
#include "snug/plan/hardware.h"
#include "snug/plan/planner.h"
#include "snug/train/config.h"

namespace snug::train {

struct PlanningOptions {
  plan::Hardware hardware;
  const plan::MeasuredCosts* costs = nullptr;  // instead of the hardware's rates
  // Sequences per forward to choose from, the plain step's first; empty: every divisor of the batch.
  std::vector<std::int64_t> micro_batches;
};

SNUG_API plan::Planner make_planner(const TrainConfig& config, const PlanningOptions& options);

// On CUDA fitted to the allocator (plan/fitted.h), on the CPU planner.decide().
SNUG_API plan::Decision decide(plan::Planner& planner, const TrainConfig& config,
                               const plan::Hardware& hardware, std::uint64_t budget_bytes);

// So many steps of the run itself, under config.plan, and then one that is timed operator by operator.
SNUG_API std::vector<plan::MeasuredOperator> time_operators(const TrainConfig& config,
                                                            std::int64_t warm_up = 2);
SNUG_API plan::MeasuredCosts measure_costs(const TrainConfig& config, const plan::Hardware& hardware);

// What a plan is for. One made for another step is refused with the first difference.
SNUG_API Json about_step(const TrainConfig& config);

// The run under this plan.
SNUG_API void take(plan::Plan plan, TrainConfig& config);

// Throws Error unless the plan is for this step and this model, region by region.
SNUG_API void check_plan(const plan::Plan& plan, const TrainConfig& config);

// A step on Meta in which nothing is kept: two passes of it at most, which stand for all.
SNUG_API trace::Sketch sketch_step(const TrainConfig& config, std::int64_t micro_batch,
                                   std::int64_t head_chunks = 0);

}  // namespace snug::train
