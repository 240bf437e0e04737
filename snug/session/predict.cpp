#include "snug/session/predict.h"

#include "snug/base/error.h"
#include "snug/hooks/meta_target.h"
#include "snug/host/arena.h"
#include "snug/plan/allocator_replay.h"
#include "snug/plan/hardware.h"
#include "snug/plan/step_allocations.h"
#include "snug/session/state_park.h"

namespace snug {

namespace {

// Every call of a region moves the same.
std::uint64_t host_bytes(const trace::Totals& totals) {
  std::uint64_t bytes = 0;
  for (const auto& [region, some] : totals)
    if (some.calls > 0)
      bytes += (some.offloaded_bytes + some.offloaded_values * (host::kPieceBytes - 1)) / some.calls;
  return bytes;
}

std::uint64_t expected_outside(const Treatment& treatment) {
  return plan::outside_or_usual(treatment.plan ? treatment.plan->predicted.outside_bytes : 0);
}

}  // namespace

Prediction predict(const Step& step, const plan::Setting& setting, const Treatment& treatment,
                   const PredictOptions& options) {
  check(static_cast<bool>(step.on_meta), "a step is predicted by running it on Meta: Step::on_meta is empty");
  const hooks::MetaTargetScope target(step.device.type());
  plan::CachingAllocatorOptions torchs{.expandable_segments = true};
  if (options.device_bytes > 0) torchs.device_bytes = options.device_bytes;
  plan::AllocatorReplay allocator(torchs);
  trace::Snapshot setup_peak;
  Prediction prediction;
  plan::Streamed streamed;
  static_cast<capture::Captured&>(prediction) = capture::capture(
      c10::kMeta,
      [&](memory::Tracker& tracker) {
        session::StatePark park({.tracker = &tracker, .streamed = &streamed});
        const auto run = step.on_meta(Account(tracker, nullptr, &streamed, &park), setting);
        // What is being built counts as temporary until it is claimed; the categories' own
        // maxima are those of the steps.
        setup_peak = tracker.peak();
        tracker.reset_peak();
        const auto recording = make_recording(treatment, {.prove = false});
        const int steps =
            options.steps > 0 ? options.steps : plan::steps_to_settle(streamed.leaves_gradients());
        for (int i = 0; i < steps; ++i) {
          run();
          if (recording) recording->end_step();
        }
        if (recording) prediction.host_bytes = host_bytes(recording->totals());
      },
      {.sink = step.device.is_cuda() ? &allocator : nullptr, .workspaces = step.device.is_cpu()});
  if (setup_peak.total > prediction.peak.total) prediction.peak = setup_peak;
  prediction.streamed_bytes = streamed.bytes;
  prediction.host_bytes += streamed.bytes;
  prediction.device = step.device.type();
  prediction.reserved_bytes = prediction.peak.total;
  if (!step.device.is_cuda()) return prediction;
  prediction.reserved_bytes = allocator.allocator().peak_reserved_bytes();
  prediction.needed_cap_bytes = allocator.allocator().needed_limit_bytes();
  prediction.outside_bytes = options.outside_bytes > 0 ? options.outside_bytes : expected_outside(treatment);
  return prediction;
}

Tuned tune(const Step& step, std::uint64_t budget_bytes, const Treatment& treatment,
           const PredictOptions& options) {
  check(!step.settings.empty(), "tune() chooses from the settings of a step: Step::settings is empty");
  Tuned tuned;
  for (const plan::Setting& setting : step.settings) {
    tuned = {.setting = setting, .predicted = predict(step, setting, treatment, options)};
    tuned.fits = tuned.predicted.least_budget() <= budget_bytes;
    if (tuned.fits) break;
  }
  return tuned;
}

bool may_fit_here(const Prediction& prediction) {
  return prediction.device != c10::kCPU || prediction.peak.total <= host::free_host_bytes();
}

}  // namespace snug
