// Where tapes leave their figures when they end; shared with whoever reports them. Internal to tape.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "snug/tape/sketch_listener.h"
#include "snug/trace/region_totals.h"
#include "snug/trace/region_tape.h"

namespace snug::tape {

struct Ledgers {
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

}  // namespace snug::tape
