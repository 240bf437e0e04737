#include "snug/train/predict.h"

#include "snug/hooks/meta_target.h"
#include "snug/plan/allocator_replay.h"
#include "snug/train/step.h"

namespace snug::train {

namespace {

constexpr std::uint64_t kHostPiece = 512;  // as the arena hands them out

// One forward's; every one moves the same.
std::uint64_t host_bytes(const trace::Totals& totals, std::uint64_t forwards) {
  std::uint64_t bytes = 0;
  for (const auto& [region, some] : totals)
    bytes += some.offloaded_bytes + some.offloaded_values * (kHostPiece - 1);
  return bytes / forwards;
}

}  // namespace

Prediction predict(const TrainConfig& config, const PredictOptions& options) {
  const hooks::MetaTargetScope target(config.device.type());
  plan::CachingAllocatorOptions torchs{.expandable_segments = true};
  if (options.device_bytes > 0) torchs.device_bytes = options.device_bytes;
  plan::AllocatorReplay allocator(torchs);
  trace::Snapshot setup_peak;
  Prediction prediction;
  static_cast<capture::Captured&>(prediction) = capture::capture(
      c10::kMeta,
      [&](memory::Tracker& tracker) {
        TrainingSetup setup(config, c10::kMeta, tracker);
        // What is being built counts as temporary until it is claimed; the categories' own
        // maxima are those of the steps.
        setup_peak = tracker.peak();
        tracker.reset_peak();
        const auto recording = make_recording(config);
        for (std::int64_t step = 0; step < options.steps; ++step) run_meta_step(setup, config, tracker);
        if (recording)
          prediction.host_bytes = host_bytes(recording->totals(),
                                             static_cast<std::uint64_t>(options.steps * meta_passes(config)));
      },
      {.sink = config.device.is_cuda() ? &allocator : nullptr, .workspaces = config.device.is_cpu()});
  prediction.reserved_bytes = allocator.allocator().peak_reserved_bytes();
  prediction.needed_cap_bytes = allocator.allocator().needed_limit_bytes();
  if (config.device.is_cuda()) prediction.outside_bytes = expected_outside(config);
  if (setup_peak.total > prediction.peak.total) prediction.peak = setup_peak;
  return prediction;
}

}  // namespace snug::train
