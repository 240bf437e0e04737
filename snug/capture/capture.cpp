#include "snug/capture/capture.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "snug/base/error.h"
#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/hooks/region.h"
#include "snug/tape/recording.h"

namespace snug::capture {

namespace {

// Counts operators, and turns the failure of one on Meta into a sentence.
class Witness final : public hooks::OperatorListener {
 public:
  explicit Witness(bool meta) : meta_(meta) {}

  void on_operator(hooks::OperatorCall& call) override {
    ++operators;
    if (!meta_) return call.proceed();
    refuse_autocast();
    try {
      call.proceed();
    } catch (const c10::Error& error) {
      if (!says_meta(error.what_without_backtrace())) throw;
      const std::string region = hooks::region_name(hooks::current_region());
      fail("operation ", call.op.operator_name(), region.empty() ? "" : " in region ", region,
           " cannot be captured on Meta: it needs the values of tensors or has no Meta kernel; capture on a "
           "real device instead");
    }
  }

  std::uint64_t operators = 0;

 private:
  static bool says_meta(const std::string& text) {
    return text.find("Meta") != std::string::npos || text.find("meta tensor") != std::string::npos;
  }

  static void refuse_autocast() {
    check(!at::autocast::is_autocast_enabled(at::kCPU) && !at::autocast::is_autocast_enabled(at::kCUDA),
          "autocast does not exist on Meta, so a capture there would miss its copies: capture on a real "
          "device, or use bf16 "
          "parameters without autocast");
  }

  bool meta_;
};

}  // namespace

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
