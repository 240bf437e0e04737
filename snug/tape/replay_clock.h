// How long recomputation takes: by the clock on the CPU, by events on a device. Internal to tape.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>
#include <string>

#include "snug/tape/ledgers.h"

namespace snug::tape {

class ReplayClock {
 public:
  ReplayClock(Ledgers& ledgers, const std::string& region, c10::Device device, bool on);
  ~ReplayClock();
  ReplayClock(const ReplayClock&) = delete;  // it is a stretch of time
  ReplayClock& operator=(const ReplayClock&) = delete;

 private:
  Ledgers& ledgers_;
  const std::string& region_;
  c10::Device device_;
  bool on_;
  std::chrono::steady_clock::time_point start_;
  std::optional<c10::Event> start_event_;
};

// Waits for the device, and adds what was timed on it to the totals. The caller holds the lock.
void settle(Ledgers& ledgers);

}  // namespace snug::tape
