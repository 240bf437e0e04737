// What tapes leave for whoever reports them: totals, tapes as plain data, and how long recomputation took. It
// outlives its Recording as long as a tape does. Internal to tape.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "snug/tape/sketch_listener.h"
#include "snug/trace/region_tape.h"
#include "snug/trace/region_totals.h"

namespace snug::tape {

struct Figures {
  struct TimedOnDevice {
    std::string region;
    c10::Event start, end;
  };

  std::mutex mutex;
  trace::Totals totals;
  std::deque<TimedOnDevice> timed;                   // not asked for yet: asking waits for the device
  std::map<std::uint64_t, trace::RegionTape> tapes;  // by the order in which they began
  std::uint64_t begun = 0;
  std::atomic<SketchListener*> sketch{nullptr};  // while its Recording lives: a graph may outlive both
};

// Waits for the device, and adds what was timed on it to the totals. The caller holds the lock.
void settle(Figures& figures);

// Times recomputation while it lives: by the clock on the CPU, by events on a device.
class ReplayClock {
 public:
  ReplayClock(Figures& figures, const std::string& region, c10::Device device, bool on);
  ~ReplayClock();
  ReplayClock(const ReplayClock&) = delete;  // it is a stretch of time
  ReplayClock& operator=(const ReplayClock&) = delete;

 private:
  Figures& figures_;
  const std::string& region_;
  c10::Device device_;
  bool on_;
  std::chrono::steady_clock::time_point start_;
  std::optional<c10::Event> start_event_;
};

}  // namespace snug::tape
