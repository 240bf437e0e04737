// Plans against each other before a run: see docs/planning.md, "The race".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/training_flags.h"
#include "snug/plan/hardware.h"
#include "snug/session/plan_step.h"
#include "snug/train/race.h"

namespace snug::cli {

// One of these is taken: the first one, which is predicted to be the fastest, unless another one is. One
// alone has not run.
struct Race {
  std::vector<plan::Plan> plans;
  train::Raced raced;

  std::string text() const;
  Json document() const;
};

// Whether a run is so long, and its machine so little known, that timing some steps before it is planned
// pays.
bool is_worth_measuring(const plan::Hardware& hardware, const train::TrainConfig& config);

// Races if that is asked for, or a small part of the run, and puts the winner into the configuration.
// `before` is called before that much is done. None: the run is too short, or there is nothing
// to race and nobody asked. Throws Stopped if a signal ends it.
std::optional<Race> race_plans(const TrainingFlags& flags, const PlanOptions& options,
                               const PlannedStep& planned, bool is_asked_for,
                               const std::function<void()>& before, train::TrainConfig& config);

}  // namespace snug::cli
