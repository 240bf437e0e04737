#include "snug/tape/figures.h"

#include "snug/tape/streams.h"

namespace snug::tape {

namespace {

c10::Event event_now(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(*current_stream(device));
  return event;
}

void add(Figures& figures, const Figures::TimedOnDevice& timed) {
  figures.totals[timed.region].replay_seconds += timed.start.elapsedTime(timed.end) / 1e3;
}

// Those that are done, so that events do not pile up over a long run.
void settle_first(Figures& figures) {
  while (!figures.timed.empty() && figures.timed.front().end.query()) {
    add(figures, figures.timed.front());
    figures.timed.pop_front();
  }
}

}  // namespace

ReplayClock::ReplayClock(Figures& figures, const std::string& region, c10::Device device, bool on)
    : figures_(figures), region_(region), device_(device), on_(on) {
  if (!on_) return;
  if (device_.is_cuda()) start_event_.emplace(event_now(device_));
  start_ = std::chrono::steady_clock::now();
}

ReplayClock::~ReplayClock() {
  if (!on_) return;
  std::lock_guard lock(figures_.mutex);
  if (!start_event_) {
    figures_.totals[region_].replay_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return;
  }
  try {
    figures_.timed.push_back({region_, std::move(*start_event_), event_now(device_)});
    settle_first(figures_);
  } catch (const c10::Error&) {  // the device failed, and whoever uses it next will say so
  }
}

void settle(Figures& figures) {
  for (auto& timed : figures.timed) {
    timed.end.synchronize();
    add(figures, timed);
  }
  figures.timed.clear();
}

}  // namespace snug::tape
