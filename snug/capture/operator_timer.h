// How long each operator of a step takes on the CPU, with what the program does before it.
//
//   OperatorTimer timer;
//   step();
//   for (const auto& [work, seconds] : timer.take()) costs.add(work, seconds);
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"
#include "snug/trace/work.h"

namespace snug::capture {

class SNUG_API OperatorTimer final : public hooks::OperatorListener {
 public:
  using Timed = std::pair<trace::Work, double>;

  OperatorTimer() : guard_(*this) {}
  OperatorTimer(const OperatorTimer&) = delete;  // see hooks::FrameGuard
  OperatorTimer& operator=(const OperatorTimer&) = delete;

  void on_operator(hooks::OperatorCall& call) override;
  std::vector<Timed> take();  // of this thread and the backwards it started; starts again

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<Timed> timed_;
  Clock::time_point last_ = Clock::now();  // an operator ended, or the timer began
  hooks::OperatorListenerGuard guard_;
};

}  // namespace snug::capture
