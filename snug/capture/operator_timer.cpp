#include "snug/capture/operator_timer.h"

#include "snug/capture/operator_work.h"

namespace snug::capture {

void OperatorTimer::on_operator(hooks::OperatorCall& call) {
  OperatorWork work(call.op, call.stack);
  call.proceed();
  const Clock::time_point now = Clock::now();
  timed_.emplace_back(work.finish(call.stack), std::chrono::duration<double>(now - last_).count());
  last_ = now;
}

std::vector<OperatorTimer::Timed> OperatorTimer::take() {
  last_ = Clock::now();
  return std::exchange(timed_, {});
}

}  // namespace snug::capture
