// A plan for anyone's step: run it once on Meta, where it costs nothing, and say how much memory there is.
//
//   PlannedStep planned = snug::plan_step([&](memory::Tracker&) {
//     auto net = capture::on_meta([] { return Net(); });
//     torch::optim::AdamW optimizer(net->parameters());
//     for (int i = 0; i < 2; ++i) {                       // the second step has the optimizer's states
//       net->loss(at::empty({32, 64}, c10::kMeta)).backward();
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//   }, {.budget_bytes = 300_MiB});
//
// The forward names its parts with snug::region(); what lies between them is planned as the region "rest".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "snug/base/export.h"
#include "snug/memory/tracker.h"
#include "snug/plan/hardware.h"
#include "snug/plan/planner.h"

namespace snug {

struct PlanOptions {
  std::uint64_t budget_bytes = 0;
  plan::Hardware hardware = plan::preset("cpu");
};

struct PlannedStep {
  plan::Plan plan;
  std::shared_ptr<const plan::Planner> planner;  // for other budgets
};

// Throws Error, which says how many bytes are missing, if nothing fits.
SNUG_API PlannedStep plan_step(const std::function<void(memory::Tracker&)>& step, const PlanOptions& options);

}  // namespace snug
