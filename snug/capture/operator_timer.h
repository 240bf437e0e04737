// How long each operator of a step takes, with what the program does before it: by the clock on the CPU, on a
// device by the time between the ends of two operators there.
//
//   OperatorTimer timer(device);
//   step();
//   for (const auto& [work, seconds] : timer.take()) costs.add(work, seconds);
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"
#include "snug/trace/work.h"

namespace snug::capture {

class SNUG_API OperatorTimer final : public hooks::OperatorListener {
 public:
  using Timed = std::pair<trace::Work, double>;

  explicit OperatorTimer(c10::Device device = c10::kCPU);
  OperatorTimer(const OperatorTimer&) = delete;  // see hooks::FrameGuard
  OperatorTimer& operator=(const OperatorTimer&) = delete;

  void on_operator(hooks::OperatorCall& call) override;
  // Of this thread and the backwards it started; waits for the device, and starts again.
  std::vector<Timed> take();

 private:
  // The end of an operator, or the begin of all.
  struct Moment {
    std::chrono::steady_clock::time_point time;
    std::optional<c10::Event> event;  // on a device
  };
  Moment now() const;
  static double seconds(const Moment& from, const Moment& to);

  const c10::Device device_;
  Moment begin_;
  std::vector<std::pair<trace::Work, Moment>> ended_;
  hooks::OperatorListenerGuard guard_;
};

}  // namespace snug::capture
