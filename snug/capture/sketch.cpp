#include "snug/capture/sketch.h"

#include <optional>

#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/capture/sketcher.h"
#include "snug/capture/witness.h"
#include "snug/capture/workspaces.h"
#include "snug/hooks/meta_target.h"
#include "snug/tape/recording.h"

namespace snug::capture {

trace::Sketch sketch(const std::function<void(memory::Tracker&)>& run, bool workspaces, bool rest) {
  const auto run_all = [&](memory::Tracker& tracker) -> StepToSketch {
    run(tracker);
    return {[] {}};
  };
  return sketch_step(run_all, workspaces, rest);
}

trace::Sketch sketch_step(const std::function<StepToSketch(memory::Tracker&)>& set_up, bool workspaces,
                          bool rest) {
  register_meta_kernels();
  GradientSumScope sums;
  std::optional<WorkspaceScope> kernels_own;
  if (workspaces) kernels_own.emplace();
  memory::Tracker tracker({.device = c10::kMeta});
  Witness witness(/*meta=*/true);
  hooks::OperatorListenerGuard witness_guard(witness);
  Sketcher sketcher(tracker, /*stand_ins=*/true);
  hooks::OperatorListenerGuard sketcher_guard(sketcher);
  tape::Recording recording(tape::Fates::keep(), {.stand_ins = true, .rest = rest});
  sketcher.begin(recording);
  const StepToSketch step = set_up(tracker);
  if (step.leaves_some) {
    sketcher.pause(recording);
    {
      const hooks::MetaTargetScope own_workspaces(hooks::meta_stands_for_cuda() ? c10::kCUDA : c10::kCPU);
      step.run();
    }
    sketcher.go_on(recording);
  }
  const auto left = [&] {
    return tracker.live_bytes() - hooks::workspaces_on_meta() + (step.host_bytes ? step.host_bytes() : 0);
  };
  const std::uint64_t before = left();
  step.run();
  if (left() > before) {
    sketcher.finish(recording);
    sketcher.begin(recording);
    step.run();
  }
  return sketcher.finish(recording);
}

}  // namespace snug::capture
