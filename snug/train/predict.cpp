#include "snug/train/predict.h"

#include "snug/train/step.h"

namespace snug::train {

capture::Captured predict(const TrainConfig& config, std::int64_t steps) {
  trace::Snapshot setup_peak;
  auto captured = capture::capture(c10::kMeta,
                                   [&](memory::Tracker& tracker) {
                                     TrainingSetup setup(config, c10::kMeta, tracker);
                                     // What is being built counts as temporary until it is claimed; the
                                     // categories' own maxima are those of the steps.
                                     setup_peak = tracker.peak();
                                     tracker.reset_peak();
                                     const auto recording = make_recording(config);
                                     for (std::int64_t step = 0; step < steps; ++step)
                                       run_meta_step(setup, config, tracker);
                                   },
                                   {.workspaces = config.device.is_cpu()});
  if (setup_peak.total > captured.peak.total) captured.peak = setup_peak;
  return captured;
}

}  // namespace snug::train
