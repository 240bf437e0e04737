#include "snug/capture/capture.h"

#include <optional>

#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/capture/witness.h"
#include "snug/tape/recording.h"

namespace snug::capture {

Captured capture(c10::Device device, const std::function<void(memory::Tracker&)>& run,
                 const CaptureOptions& options) {
  std::optional<GradientSumScope> sums;  // before the tracker, which then sees what it does
  if (device.is_meta()) {
    register_meta_kernels();
    sums.emplace();
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
