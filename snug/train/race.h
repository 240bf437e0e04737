// Plans for one step against each other, where they will run: which of several splits of a batch is the
// fastest is decided by a few per cent, and predictions are off by as much.
//
//   Raced raced = race(config, plans);
//   take(plans[raced.fastest], config);
//
// Each runs some steps, one after the other and then all again, since clocks wander: on a model and states of
// its own, of the same sizes and with no meaning, and on made-up tokens. Nothing of it is left behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/train/config.h"

namespace snug::train {

struct Raced {
  std::vector<double> seconds;  // of a step under each plan; infinite if it does not run
  std::size_t fastest = 0;      // the first one, unless another is clearly faster
};

struct RaceOptions {
  std::function<void(std::size_t plan, double seconds)> on_turn;
  const std::atomic<bool>* stop = nullptr;  // set: the race is over, and the first plan has won
};

SNUG_API Raced race(const TrainConfig& config, const std::vector<plan::Plan>& plans,
                    const RaceOptions& options = {});

// How many steps that takes.
SNUG_API std::int64_t steps_of_race(const TrainConfig& config, std::size_t plans);

}  // namespace snug::train
