// One runtime on a GPU: a loop written by hand under a Session, against `train`. Same plan, the same process
// but for 8 MiB. Skips loudly where there is no GPU.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "snug/base/bytes.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/launch_graph.h"
#include "snug/memory/process_memory.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/train/hand_written_loop.h"

namespace snug::train::one_runtime {
namespace {

const c10::Device kDevice(c10::kCUDA, 0);

struct Pair {
  std::int64_t layers, hidden, kv_heads, batch, tokens;
  double share;  // of the way from the least to the plain peak
};

TrainConfig config_of(const Pair& pair) {
  TrainConfig config;
  config.model_name = "a pair";
  config.model = {.vocab_size = 8192,
                  .hidden_size = pair.hidden,
                  .intermediate_size = 3 * pair.hidden,
                  .num_layers = pair.layers,
                  .num_heads = pair.hidden / 64,
                  .num_kv_heads = pair.kv_heads,
                  .head_dim = 64,
                  .max_positions = 4096};
  config.device = kDevice;
  config.precision = Precision::Bf16;
  config.batch_size = config.micro_batch = pair.batch;
  config.seq_len = pair.tokens;
  config.steps = 4;
  // What waits for the next forward lies between activations: where, depends on what else a loop allocates.
  config.update = optim::UpdateTime::InStep;
  return config;
}

// As in a process of its own: else cuBLAS's workspaces of the run before lie somewhere in the middle.
void forget() {
  machine::give_back_cache(kDevice);
}

class OneRuntimeOnCuda : public ::testing::TestWithParam<Pair> {};

TEST_P(OneRuntimeOnCuda, AHandWrittenLoopNeedsWhatTheTrainerDoes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a loop was not compared with the trainer";
  memory::note_memory_before_context(0);
  TrainConfig config = config_of(GetParam());
  train(config);  // loads what a step loads
  forget();
  plan::Hardware hardware = machine::hardware_of(kDevice);
  hardware.outside_bytes = memory::process_memory(kDevice).outside_bytes() + 8_MiB;
  const Step step = make_step(config);
  const auto planner = make_planner(step, {.hardware = hardware});
  const auto least = static_cast<double>(planner->offers().front().peak_bytes),
             plain = static_cast<double>(planner->plain().peak_bytes);
  const auto budget = static_cast<std::uint64_t>(1.02 * least + GetParam().share * (plain - least));
  const PlannedStep planned = plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner);
  ASSERT_TRUE(planned.decision.fits);
  const Ran loop = by_hand(config, planned.plan, hardware);
  forget();

  take(planned.plan, config);
  std::vector<double> losses;
  const TrainResult trained =
      train(config, {.on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); }});
  ASSERT_EQ(loop.losses.size(), losses.size());
  EXPECT_EQ(loop.losses[0], losses[0]) << "the forward has the same bits; attention's backward has not";
  for (std::size_t i = 1; i < losses.size(); ++i) EXPECT_NEAR(loop.losses[i], losses[i], 0.01);
  EXPECT_NEAR(static_cast<double>(loop.budget_use), static_cast<double>(trained.measured.budget_use),
              static_cast<double>(8_MiB));
  EXPECT_NEAR(static_cast<double>(loop.budget_use), static_cast<double>(planned.plan.predicted.peak_bytes),
              static_cast<double>(16_MiB));
  EXPECT_EQ(loop.host, trained.measured.host_bytes);
  EXPECT_LE(loop.budget_use, budget);
  RecordProperty("loop_mib", static_cast<int>(loop.budget_use / 1_MiB));
  RecordProperty("train_mib", static_cast<int>(trained.measured.budget_use / 1_MiB));
}

INSTANTIATE_TEST_SUITE_P(Pairs, OneRuntimeOnCuda,
                         ::testing::Values(Pair{8, 1024, 16, 8, 1024, 1.0}, Pair{8, 1024, 16, 8, 1024, 0.5},
                                           Pair{8, 1024, 16, 8, 1024, 0.05}, Pair{4, 2048, 8, 4, 2048, 0.7},
                                           Pair{4, 2048, 8, 4, 2048, 0.3}, Pair{4, 2048, 8, 4, 2048, 0.1},
                                           Pair{12, 512, 4, 8, 2048, 0.2}, Pair{12, 512, 4, 8, 2048, 0.6},
                                           Pair{16, 768, 12, 2, 4096, 0.4}, Pair{16, 768, 12, 2, 4096, 0.15},
                                           Pair{2, 1024, 4, 16, 512, 0.5}, Pair{24, 512, 8, 1, 4096, 0.3}));

}  // namespace
}  // namespace snug::train::one_runtime
