// How long calls take, on the CPU by its clock, on a GPU by its own.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>

namespace snug::machine {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Of `times` calls in a row. On a GPU the host is ahead, so that its launches are not timed.
double seconds_of(c10::Device device, const std::function<void()>& run, int times);

// Of one call, after one that loads what it needs: in the fastest of three rows of calls, as what else runs
// on the machine only slows it. A row lasts `least_seconds`, so that clocks and power are those of long work.
double seconds_per_run(c10::Device device, const std::function<void()>& run, double least_seconds);

}  // namespace snug::machine
