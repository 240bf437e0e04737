#include "snug/machine/probe_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "snug/machine/cuda_probe.h"

namespace snug::machine {

namespace {
constexpr double kShortest = 1e-9;  // of a clock's tick, so that nothing is divided by 0
constexpr int kMostRuns = 1000;
constexpr int kRows = 3;
}  // namespace

double seconds_of(c10::Device device, const std::function<void()>& run, int times) {
  if (device.is_cuda()) return std::max(cuda_seconds(device, run, times), kShortest);
  const Stopwatch watch;
  for (int i = 0; i < times; ++i) run();
  return std::max(watch.seconds(), kShortest);
}

double seconds_per_run(c10::Device device, const std::function<void()>& run, double least_seconds) {
  seconds_of(device, run, 1);
  const double once = seconds_of(device, run, 1);
  const int runs = static_cast<int>(std::clamp<double>(std::ceil(least_seconds / once), 1, kMostRuns));
  double best = runs == 1 ? once : std::numeric_limits<double>::infinity();
  for (int row = runs == 1 ? 1 : 0; row < kRows; ++row)
    best = std::min(best, seconds_of(device, run, runs) / runs);
  return best;
}

}  // namespace snug::machine
