#include "cli/race.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/exit_status.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "snug/train/planning.h"

namespace snug::cli {

namespace {

constexpr std::int64_t kShare = 20;  // of a run's steps that may go into finding out how to run them

// The plan, and those that may turn out to be faster: with the batch in other parts.
std::vector<plan::Plan> plans_to_race(const TrainingFlags& flags, const PlanOptions& options,
                                      const PlannedStep& planned, const train::TrainConfig& config) {
  constexpr double kMaybeFaster = 1.25;  // by how much predictions of other splits were off
  constexpr std::size_t kMost = 4;
  std::vector<plan::Plan> plans =
      rival_plans(step_for(flags, config, *options.hardware), options, planned, kMaybeFaster);
  plans.insert(plans.begin(), planned.plan);
  plans.resize(std::min(plans.size(), kMost));
  return plans;
}

}  // namespace

std::string Race::text() const {
  if (plans.size() < 2) return "No other split of the batch is predicted to be about as fast: none raced\n";
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < plans.size(); ++i)
    parts.push_back(fmt::format(
        "micro-batch {} {}{}", plans[i].setting[plan::kMicroBatch],
        std::isfinite(raced.seconds[i]) ? fmt::format("{:.4g} ms", 1e3 * raced.seconds[i]) : "does not fit",
        i == raced.fastest ? " (taken)" : ""));
  return fmt::format("Raced {} plans, one for each split: {}\n", plans.size(), fmt::join(parts, ", "));
}

Json Race::document() const {
  Json all = Json::array();
  if (plans.size() < 2) return all;
  for (std::size_t i = 0; i < plans.size(); ++i)
    all.push_back({{"micro_batch", plans[i].setting[plan::kMicroBatch]},
                   {"predicted_seconds", plans[i].predicted.step_seconds},
                   {"seconds", std::isfinite(raced.seconds[i]) ? Json(raced.seconds[i]) : Json(nullptr)},
                   {"taken", i == raced.fastest}});
  return all;
}

bool is_worth_measuring(const plan::Hardware& hardware, const train::TrainConfig& config) {
  constexpr std::int64_t kSteps = 3;
  return hardware.is_estimate && config.ranks == 1 && config.steps >= kShare * kSteps;
}

std::optional<Race> race_plans(const TrainingFlags& flags, const PlanOptions& options,
                               const PlannedStep& planned, bool is_asked_for,
                               const std::function<void()>& before, train::TrainConfig& config) {
  const auto is_small = [&](std::size_t plans) {
    return config.steps >= kShare * train::steps_of_race(config, plans);
  };
  if (config.ranks > 1 || (!is_asked_for && !is_small(2))) return std::nullopt;
  Race race{.plans = plans_to_race(flags, options, planned, config)};
  while (!is_asked_for && !is_small(race.plans.size())) race.plans.pop_back();
  if (race.plans.size() < 2) return is_asked_for ? std::optional(std::move(race)) : std::nullopt;
  before();
  print(fmt::format("racing {} plans for {} steps each, before the first one\n", race.plans.size(),
                    train::steps_of_race(config, 1)),
        stderr);
  race.raced = train::race(largest_step(flags, config), race.plans, {.stop = &stop_on_signal("this step")});
  if (stop_signal() > 0) throw Stopped{stop_signal(), "stopped in the race of plans, before the first step"};
  train::take(race.plans[race.raced.fastest], config);
  return race;
}

}  // namespace snug::cli
