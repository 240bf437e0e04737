// A plan for anyone's step: say how to run it on Meta, where it costs nothing, and how much memory there is.
//
//   PlannedStep planned = snug::plan_step(step, {.budget_bytes = 12_GiB});
//   if (!planned.decision.fits) ...                     // by planned.decision.missing_bytes
//   snug::Session session(net->parameters(), {.plan = planned.plan});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/cost.h"
#include "snug/plan/hardware.h"
#include "snug/plan/planner.h"
#include "snug/session/step.h"

namespace snug {

struct PlanOptions {
  std::uint64_t budget_bytes = 0;
  std::optional<std::uint64_t> host_budget_bytes;  // default: four fifths of the host's memory
  std::optional<plan::Hardware> hardware;      // default: as last probed, or the preset of the step's device
  const plan::MeasuredCosts* costs = nullptr;  // instead of the hardware's rates
};

struct PlannedStep {
  plan::Plan plan;
  plan::Decision decision;
  std::shared_ptr<plan::Planner> planner;  // for other budgets
};

// Sketches the step at each of its settings and searches; all budgets are answered from it.
SNUG_API std::shared_ptr<plan::Planner> make_planner(const Step& step, const PlanOptions& options);

// On CUDA fitted to torch's allocator: see plan/fitted.h.
// That nothing fits is an answer too: the plan is then the leanest there is. `planner`: one that
// make_planner() made for the same step and options.
SNUG_API PlannedStep plan_step(const Step& step, const PlanOptions& options,
                               std::shared_ptr<plan::Planner> planner = nullptr);

// Plans within the same budget that split the batch otherwise, as the step's settings have it, and are
// predicted to take at most `slowdown` times as long, the fastest first. `planned`: by plan_step() for the
// same step and options. Predictions are off by some per cent; whoever has the device can race them
// (train/race.h).
SNUG_API std::vector<plan::Plan> rival_plans(const Step& step, const PlanOptions& options,
                                             const PlannedStep& planned, double slowdown);

// Throws Error, with the first difference, unless the plan says that it is for this step.
SNUG_API void check_identity(const plan::Plan& plan, const Step& step);
// The same, and unless it is, region by region.
SNUG_API void check_plan(const plan::Plan& plan, const Step& step);

// A step on Meta in which nothing is kept.
SNUG_API trace::Sketch sketch_step(const Step& step, const plan::Setting& setting);

}  // namespace snug
