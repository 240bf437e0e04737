// The promise of one runtime: a loop written by hand under a Session is what `train` is. Same plan, same peak
// to the byte, same losses.
#include "snug/session/session.h"

#include <ATen/Parallel.h>
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/train/hand_written_loop.h"

namespace snug::train {
namespace {

struct Pair {
  std::int64_t layers, kv_heads, vocabulary, batch, tokens;
  double share;     // of the way from the least to the plain peak
  double link = 0;  // bytes per second
};

TrainConfig config_of(const Pair& pair) {
  TrainConfig config;
  config.model_name = "a pair";
  config.model = {.vocab_size = pair.vocabulary,
                  .hidden_size = 64,
                  .intermediate_size = 176,
                  .num_layers = pair.layers,
                  .num_heads = 4,
                  .num_kv_heads = pair.kv_heads,
                  .head_dim = 16,
                  .max_positions = 256};
  config.batch_size = config.micro_batch = pair.batch;
  config.seq_len = pair.tokens;
  config.steps = 4;
  return config;
}

class OneRuntime : public ::testing::TestWithParam<Pair> {};

TEST_P(OneRuntime, AHandWrittenLoopNeedsAndLearnsWhatTheTrainerDoes) {
  at::set_num_threads(1);
  TrainConfig config = config_of(GetParam());
  plan::Hardware hardware = plan::preset("cpu");
  hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = GetParam().link;
  const Step step = make_step(config);
  const auto planner = make_planner(step, {.hardware = hardware});
  const auto least = static_cast<double>(planner->offers().front().peak_bytes),
             plain = static_cast<double>(planner->plain().peak_bytes);
  const auto budget = static_cast<std::uint64_t>(least + GetParam().share * (plain - least));
  const PlannedStep planned = plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner);
  ASSERT_TRUE(planned.decision.fits);
  const Ran loop = by_hand(config, planned.plan, hardware);

  take(planned.plan, config);
  std::vector<double> losses;
  const TrainResult trained =
      train(config, {.on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); }});
  EXPECT_EQ(loop.losses, losses);
  EXPECT_EQ(loop.budget_use, trained.measured.budget_use);
  EXPECT_EQ(loop.budget_use, planned.plan.predicted.peak_bytes);
  EXPECT_EQ(loop.host, trained.measured.host_bytes);
  EXPECT_LE(loop.budget_use, budget);
}

INSTANTIATE_TEST_SUITE_P(Pairs, OneRuntime,
                         ::testing::Values(Pair{2, 4, 300, 4, 64, 1.0}, Pair{2, 4, 300, 4, 64, 0.5},
                                           Pair{2, 4, 300, 4, 64, 0.0}, Pair{5, 2, 64, 2, 128, 0.7},
                                           Pair{5, 2, 64, 2, 128, 0.2}, Pair{5, 2, 64, 2, 128, 0.2, 2e10},
                                           Pair{3, 1, 512, 6, 33, 0.3}, Pair{3, 1, 512, 6, 33, 0.6, 2e10},
                                           Pair{8, 4, 64, 4, 64, 0.1}, Pair{8, 4, 64, 4, 64, 0.1, 2e10},
                                           Pair{1, 4, 4096, 8, 64, 0.4}, Pair{12, 4, 64, 1, 128, 0.3}));

}  // namespace
}  // namespace snug::train
