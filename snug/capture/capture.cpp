#include "snug/capture/capture.h"

#include <optional>

#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/capture/witness.h"
#include "snug/capture/workspaces.h"
#include "snug/tape/recording.h"

namespace snug::capture {

Captured capture(c10::Device device, const std::function<void(memory::Tracker&)>& run,
                 const CaptureOptions& options) {
  // Before the tracker, which then sees what they do.
  std::optional<GradientSumScope> sums;
  std::optional<WorkspaceScope> workspaces;
  if (device.is_meta()) {
    register_meta_kernels();
    sums.emplace();
    if (options.workspaces) workspaces.emplace();
  }
  memory::Tracker tracker({.device = device, .sink = options.sink});
  Witness witness(device.is_meta());
  hooks::OperatorListenerGuard guard(witness);
  std::optional<tape::Recording> recording;
  if (options.tapes) recording.emplace(tape::Fates::keep(), tape::RecordingOptions{.describe = true});
  run(tracker);
  return {.peak = tracker.peak(),
          .category_peaks = tracker.category_peaks(),
          .live_at_end = tracker.live(),
          .operators = witness.operators,
          .tapes = recording ? recording->take_tapes() : std::vector<trace::RegionTape>()};
}

}  // namespace snug::capture
