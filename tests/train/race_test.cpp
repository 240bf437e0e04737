// Plans against each other: who is in the race, who may win it, and that nothing of it is left behind.
#include "snug/train/race.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/machine/hardware_of.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

namespace snug::train::races {
namespace {

TrainConfig a_step() {
  TrainConfig config;
  config.model_name = "raced";
  config.model = {.vocab_size = 256,
                  .hidden_size = 64,
                  .intermediate_size = 176,
                  .num_layers = 3,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .head_dim = 16,
                  .max_positions = 128};
  config.batch_size = config.micro_batch = 4;
  config.seq_len = 64;
  config.steps = 30;
  config.optimizer.warmup = 20;  // more steps than a race has
  return config;
}

class Race : public ::testing::Test {
 protected:
  Race() {
    const Step step = make_step(config_);
    const auto planner = make_planner(step, {.hardware = hardware_});
    budget_ = planner->plain().peak_bytes * 3 / 4;
    const PlanOptions options{.budget_bytes = budget_, .hardware = hardware_};
    const PlannedStep planned = plan_step(step, options, planner);
    plans_ = rival_plans(step, options, planned, 10);
    plans_.insert(plans_.begin(), planned.plan);
  }

  std::vector<double> losses_of(const plan::Plan& plan) const {
    TrainConfig config = config_;
    config.steps = 3;
    config.optimizer.warmup = 0;
    take(plan, config);
    std::vector<double> losses;
    train(config, {.on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); }});
    return losses;
  }

  const TrainConfig config_ = a_step();
  const plan::Hardware hardware_ = machine::hardware_here(c10::kCPU).hardware;
  std::uint64_t budget_ = 0;
  std::vector<plan::Plan> plans_;
};

TEST_F(Race, RivalsSplitTheBatchOtherwiseWithinTheSameBudget) {
  std::set<std::int64_t> splits;
  double before = 0;
  for (const plan::Plan& plan : plans_) {
    EXPECT_TRUE(splits.insert(plan.setting[plan::kMicroBatch]).second);
    EXPECT_LE(plan.predicted.peak_bytes, budget_);
    EXPECT_EQ(plan.budget_bytes, budget_);
    EXPECT_LE(before, plan.predicted.step_seconds);
    before = plan.predicted.step_seconds;
    EXPECT_NO_THROW(check_plan(plan, config_));
  }
  EXPECT_EQ(splits, (std::set<std::int64_t>{1, 2, 4}));
}

TEST_F(Race, TimesEachAndLeavesNothingBehind) {
  const std::vector<double> before = losses_of(plans_[0]);
  std::vector<int> turns(plans_.size());
  const Raced raced = race(config_, plans_, {.on_turn = [&](std::size_t plan, double seconds) {
                             ++turns[plan];
                             EXPECT_TRUE(std::isfinite(seconds));
                           }});
  EXPECT_EQ(turns, std::vector<int>(plans_.size(), 2));
  for (const double seconds : raced.seconds) EXPECT_GT(seconds, 0);
  EXPECT_LE(raced.seconds[raced.fastest], raced.seconds[0]);
  EXPECT_EQ(losses_of(plans_[0]), before);
}

TEST_F(Race, WhatDoesNotRunDoesNotWin) {
  plan::Plan tight = plans_[1];
  tight.budget_bytes = tight.predicted.peak_bytes / 2;
  tight.predicted.peak_bytes = 1;
  const Raced raced = race(config_, {plans_[0], tight});
  EXPECT_TRUE(std::isfinite(raced.seconds[0]));
  EXPECT_TRUE(std::isinf(raced.seconds[1]));
  EXPECT_EQ(raced.fastest, 0u);
  const Raced other = race(config_, {tight, plans_[0]});
  EXPECT_EQ(other.fastest, 1u);
}

TEST_F(Race, IsOverWhenTheRunIsStopped) {
  const std::atomic<bool> stop = true;
  int turns = 0;
  const Raced raced =
      race(config_, plans_, {.on_turn = [&](std::size_t, double) { ++turns; }, .stop = &stop});
  EXPECT_EQ(turns, 0);
  EXPECT_EQ(raced.fastest, 0u);
}

}  // namespace
}  // namespace snug::train::races
