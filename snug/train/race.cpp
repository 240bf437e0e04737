#include "snug/train/race.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "snug/base/error.h"
#include "snug/machine/launch_graph.h"
#include "snug/train/captured_passes.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

namespace snug::train {

namespace {

constexpr int kTurns = 2;
constexpr std::int64_t kTimed = 3;
constexpr double kNever = std::numeric_limits<double>::infinity();

// The first one loads kernels and chooses algorithms; what may become a graph first shows that it is worth
// it.
std::int64_t steps_of_turn(const TrainConfig& config) {
  return kTimed + 1 + (may_be_captured(config) ? CapturedPasses::kAlike + 1 : 0);
}

// The median of the last steps.
double seconds_of_turn(const TrainConfig& config, const std::atomic<bool>* stop) {
  std::vector<double> seconds;
  try {
    train(config,
          {.on_step = [&](const StepMetrics& metrics) { seconds.push_back(metrics.seconds); }, .stop = stop});
  } catch (const c10::OutOfMemoryError&) {
    seconds.clear();
  }
  machine::give_back_cache(config.device);  // as if nothing had run: the next one has its memory to itself
  if (std::ssize(seconds) < config.steps) return kNever;
  std::vector<double> last(seconds.end() - kTimed, seconds.end());
  std::ranges::sort(last);
  return last[kTimed / 2];
}

}  // namespace

std::int64_t steps_of_race(const TrainConfig& config, std::size_t plans) {
  return kTurns * steps_of_turn(config) * static_cast<std::int64_t>(plans);
}

Raced race(const TrainConfig& config, const std::vector<plan::Plan>& plans, const RaceOptions& options) {
  constexpr double kClearly = 0.99;
  check(!plans.empty(), "a race needs plans");
  Raced raced{.seconds = std::vector<double>(plans.size(), 0)};
  const auto stopped = [&] { return options.stop && *options.stop; };
  for (int turn = 0; turn < kTurns; ++turn)
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (stopped()) return {.seconds = std::move(raced.seconds)};
      TrainConfig shape = without_meaning(config, steps_of_turn(config));
      take(plans[i], shape);
      if (raced.seconds[i] == kNever) continue;
      const double seconds = seconds_of_turn(shape, options.stop);
      if (!stopped() && options.on_turn) options.on_turn(i, seconds);
      raced.seconds[i] += seconds / kTurns;
    }
  const auto best = std::ranges::min_element(raced.seconds);
  if (*best < kClearly * raced.seconds[0])
    raced.fastest = static_cast<std::size_t>(best - raced.seconds.begin());
  return raced;
}

}  // namespace snug::train
