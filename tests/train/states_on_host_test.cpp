// States that wait on the host: the run learns the same to the bit, and needs what was predicted to the byte.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/support/temporary_folder.h"

namespace snug::train::states_on_host {
namespace {

class StatesOnHost : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TrainConfig small() {
  TrainConfig config;
  config.model_name = "tiny";
  config.model = models::load_config("tiny");
  config.model.num_layers = 2;
  config.steps = 4;
  config.batch_size = 2;
  config.micro_batch = 1;
  config.seq_len = 16;
  return config;
}

std::vector<double> losses_of(const TrainConfig& config, TrainOptions options = {}) {
  std::vector<double> losses;
  options.on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); };
  const TrainResult result = train(config, options);
  EXPECT_EQ(result.measured.peak.total, result.predicted.peak.total);
  EXPECT_LE(result.measured.host_bytes, result.predicted.host_bytes);
  if (!config.offload) {  // whose values are rounded up
    EXPECT_EQ(result.measured.host_bytes, result.predicted.host_bytes);
  }
  return losses;
}

// In the backward only what nobody clips or scales.
std::vector<optim::UpdateTime> times(const TrainConfig& config) {
  using enum optim::UpdateTime;
  const bool needs_all = config.optimizer.clip > 0 || config.precision == Precision::Fp16;
  return needs_all ? std::vector{InStep, BeforeForward} : std::vector{InStep, BeforeForward, InBackward};
}

TEST_F(StatesOnHost, ChangeMemoryAndNothingElse) {
  for (const OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd})
    for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp16})
      for (const double clip : {0.0, 0.5}) {
        TrainConfig config = small();
        config.optimizer.kind = kind;
        config.optimizer.momentum = kind == OptimizerKind::Sgd ? 0.9 : 0;
        config.optimizer.clip = clip;
        config.precision = precision;
        config.steps = 2;
        SCOPED_TRACE(to_json(config).dump());
        const std::vector<double> plain = losses_of(config);
        for (const auto& [share, stepped] : {std::pair(40, 0), {100, 0}, {100, 60}})
          for (const auto update : times(config)) {
            config.states_on_host = share;
            config.stepped_on_host = stepped;
            config.update = update;
            EXPECT_EQ(losses_of(config), plain) << share << " % " << stepped << " % " << name(update);
          }
      }
}

// Gradients and weights too, in one pass and in several, under recomputation and offload.
TEST_F(StatesOnHost, WithGradientsAndWeightsChangeMemoryAndNothingElse) {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp16})
    for (const std::int64_t micro_batch : {2, 1})
      for (const Recompute recompute : {Recompute::None, Recompute::Block}) {
        TrainConfig config = small();
        config.model.num_layers = 3;
        config.precision = precision;
        config.optimizer.clip = recompute == Recompute::None ? 0 : 0.5;
        config.micro_batch = micro_batch;
        config.recompute = recompute;
        if (micro_batch == 1 && recompute == Recompute::Block) config.offload = OffloadLimit{};
        config.steps = 3;
        SCOPED_TRACE(to_json(config).dump());
        const std::vector<double> plain = losses_of(config);
        for (const auto& [gradients, weights, stepped] :
             {std::tuple(100, 0, 0), {0, 100, 50}, {50, 50, 100}, {100, 100, 0}, {100, 100, 50}})
          for (const auto update : times(config)) {
            config.gradients_on_host = gradients;
            config.weights_on_host = weights;
            config.stepped_on_host = stepped;
            config.update = update;
            EXPECT_EQ(losses_of(config), plain)
                << gradients << " " << weights << " " << stepped << " " << name(update);
          }
      }
}

// Of many passes the first makes gradients, the next add to them, and the last updates with them.
TEST_F(StatesOnHost, ManyPassesNeedWhatWasPredicted) {
  TrainConfig config = small();
  config.model.num_layers = 4;
  config.batch_size = 4;
  config.optimizer.clip = 0;
  config.steps = 2;
  const std::vector<double> plain = losses_of(config);
  for (const auto update : times(config))
    for (const auto& [gradients, weights] : {std::pair(33, 0), {100, 0}, {0, 75}, {100, 100}}) {
      config.gradients_on_host = gradients;
      config.weights_on_host = weights;
      config.update = update;
      EXPECT_EQ(losses_of(config), plain) << gradients << " " << weights << " " << name(update);
    }
}

TEST_F(StatesOnHost, ARunGoesOnUnderAnotherPlacementAsIfNothingHadHappened) {
  const testing::TemporaryFolder folder;
  TrainConfig config = small();
  config.precision = Precision::Bf16;
  const std::vector<double> whole = losses_of(config);
  config.steps = 1;
  std::vector<double> parts = losses_of(config, {.out_dir = folder.path() / "run", .save = true});
  for (const std::int64_t share : {100, 30, 0}) {
    ++config.steps;
    config.states_on_host = share;
    config.gradients_on_host = share == 30 ? 60 : share;
    config.weights_on_host = share == 100 ? 100 : 0;
    config.stepped_on_host = 100 - share;
    const auto more = losses_of(config, {.out_dir = folder.path() / "run", .save = true, .resume = true});
    parts.insert(parts.end(), more.begin(), more.end());
  }
  EXPECT_EQ(parts, whole);
}

TEST_F(StatesOnHost, ABudgetBelowTheStatesIsMetByAPlan) {
  for (const auto update : {optim::UpdateTime::InStep, optim::UpdateTime::BeforeForward}) {
    TrainConfig config = small();
    const std::vector<double> plain = losses_of(config);
    config.update = update;
    plan::Hardware hardware = plan::preset("cpu");
    hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 1e10;
    const Step step = make_step(config, {config.micro_batch});
    const auto planner = make_planner(step, {.hardware = hardware});
    const std::uint64_t weights = predict(config).peak.bytes[static_cast<int>(trace::Category::Parameter)];
    const std::uint64_t budget = planner->offers().front().peak_bytes;
    ASSERT_LT(budget, 3 * weights) << "weights and states";
    const PlannedStep planned = plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner);
    ASSERT_TRUE(planned.decision.fits);
    EXPECT_EQ(planned.plan.setting[plan::kStatesOnHost], 100);
    take(planned.plan, config);
    EXPECT_EQ(losses_of(config), plain);

    // Without that much of the host there is no such plan.
    const auto less = make_planner(step, {.host_budget_bytes = weights, .hardware = hardware});
    EXPECT_GT(less->offers().front().peak_bytes, budget);
    // Without a link neither.
    const auto none = make_planner(step, {.hardware = plan::preset("cpu")});
    EXPECT_GT(none->offers().front().peak_bytes, 3 * weights);
  }
}

TEST_F(StatesOnHost, WhatTheHostCannotHoldIsRefusedBeforeTheFirstStep) {
  TrainConfig config = small();
  config.states_on_host = 100;
  config.host_budget_bytes = 1_MiB;
  bool has_begun = false;
  const std::string message = testing::message_of<RunError>(
      [&] { train(config, {.on_step = [&](const StepMetrics&) { has_begun = true; }}); });
  EXPECT_FALSE(has_begun);
  EXPECT_NE(message.find("1.0 MiB"), std::string::npos) << message;
}

TEST_F(StatesOnHost, AShareThatMovesNothingIsAnError) {
  TrainConfig config = small();
  config.optimizer.kind = OptimizerKind::Sgd;  // without momentum: no states
  config.states_on_host = 100;
  EXPECT_NE(testing::message_of<Error>([&] { train(config); }).find("`states_on_host` 100% moves nothing"),
            std::string::npos);
  for (const char* text : {"", "0%", "101%", "half", "50", "-5%", "5 %", "1e1%"})
    EXPECT_NE(testing::message_of<Error>([&] { parse_share_on_host(text); }).find("from 1% to 100%"),
              std::string::npos)
        << text;
  EXPECT_EQ(parse_share_on_host("all"), 100);
  EXPECT_EQ(parse_share_on_host("7%"), 7);
  EXPECT_EQ(parse_share_on_host("none"), 0);
}

}  // namespace
}  // namespace snug::train::states_on_host
