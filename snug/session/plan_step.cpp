#include "snug/session/plan_step.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/sketch.h"
#include "snug/hooks/meta_target.h"
#include "snug/plan/cost.h"

namespace snug {

PlannedStep plan_step(const std::function<void(memory::Tracker&)>& step, const PlanOptions& options) {
  const bool is_gpu = options.hardware.is_gpu;
  hooks::MetaTargetScope target(is_gpu ? c10::kCUDA : c10::kCPU);
  auto model = std::make_shared<const plan::StepModel>(capture::sketch(
                                                           [&](memory::Tracker& tracker) {
                                                             target.take_workspaces();
                                                             step(tracker);
                                                           },
                                                           /*workspaces=*/!is_gpu, /*rest=*/true),
                                                       /*passes=*/1, plan::MeasuredCosts(options.hardware),
                                                       plan::links_of(options.hardware));
  auto planner = std::make_shared<const plan::Planner>(std::vector<plan::Split>{{.model = std::move(model)}},
                                                       plan::overhead_of(options.hardware));
  const plan::Decision decision = planner->decide(options.budget_bytes);
  check(decision.fits, "the step does not fit ", format_bytes(options.budget_bytes),
        ": the leanest plan needs ", format_bytes(decision.taken.peak_bytes), ", ",
        format_bytes(decision.missing_bytes), " more");
  const Json about = {{"torch", TORCH_VERSION},
                      {"device", is_gpu ? "cuda" : "cpu"},
                      {"threads", is_gpu ? 0 : at::get_num_threads()}};
  return {planner->write_down(decision, about), planner};
}

}  // namespace snug
