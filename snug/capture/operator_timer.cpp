#include "snug/capture/operator_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "snug/capture/operator_work.h"

namespace snug::capture {

OperatorTimer::OperatorTimer(c10::Device device) : device_(device), begin_(now()), guard_(*this) {}

void OperatorTimer::on_operator(hooks::OperatorCall& call) {
  OperatorWork work(call.op, call.stack);
  call.proceed();
  trace::Work done = work.finish(call.stack);
  ended_.emplace_back(std::move(done), now());
}

std::vector<OperatorTimer::Timed> OperatorTimer::take() {
  std::vector<Timed> timed;
  if (!ended_.empty() && ended_.back().second.event) ended_.back().second.event->synchronize();
  const Moment* before = &begin_;
  for (auto& [work, end] : ended_) {
    timed.emplace_back(std::move(work), seconds(*before, end));
    before = &end;
  }
  ended_.clear();
  begin_ = now();
  return timed;
}

OperatorTimer::Moment OperatorTimer::now() const {
  Moment moment{.time = std::chrono::steady_clock::now()};
  if (!device_.is_cuda()) return moment;
  moment.event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  moment.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return moment;
}

double OperatorTimer::seconds(const Moment& from, const Moment& to) {
  if (from.event && to.event) return from.event->elapsedTime(*to.event) / 1e3;
  return std::chrono::duration<double>(to.time - from.time).count();
}

}  // namespace snug::capture
