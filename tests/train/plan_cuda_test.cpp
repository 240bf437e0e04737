// The promise on a GPU: what the whole process needs is what was predicted before its first allocation there,
// and never more than the budget. Skips loudly where there is no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <random>
#include <set>

#include "snug/base/bytes.h"
#include "snug/memory/process_memory.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/launch_graph.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/support/random_suite.h"

namespace snug::train {
namespace {

const c10::Device kDevice(c10::kCUDA, 0);

TrainConfig a_step(std::int64_t layers, std::int64_t hidden, std::int64_t kv_heads, std::int64_t tokens) {
  TrainConfig config;
  config.model_name = "random";
  config.model = {.vocab_size = 8192,
                  .hidden_size = hidden,
                  .intermediate_size = 3 * hidden,
                  .num_layers = layers,
                  .num_heads = hidden / 128,
                  .num_kv_heads = kv_heads,
                  .head_dim = 128,
                  .max_positions = 4096};
  config.device = kDevice;
  config.precision = Precision::Bf16;
  config.batch_size = config.micro_batch = 8;
  config.seq_len = tokens;
  config.steps = 3;
  return config;
}

class PlannedOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: plans for one were not run";
    memory::note_memory_before_context(0);
    train(a_step(2, 512, 4, 512));  // loads what a step loads
    memory::empty_cuda_cache();
    hardware_ = machine::hardware_of(kDevice);
    hardware_.outside_bytes = memory::process_memory(kDevice).outside_bytes() + 8_MiB;
  }

  TrainResult run(const TrainConfig& config, std::uint64_t budget, plan::Decision& decision) {
    PlannedStep step = plan_step(make_step(config), {.budget_bytes = budget, .hardware = hardware_});
    decision = step.decision;
    TrainConfig planned = config;
    take(step.plan, planned);
    // As in a process of its own: else cuBLAS's workspaces of the run before lie somewhere in the middle.
    machine::give_back_cache(kDevice);
    return train(planned);
  }

  plan::Hardware hardware_;
};

TEST_F(PlannedOnCuda, TheProcessNeedsWhatWasPredicted) {
  const std::uint64_t seed = random_suite::seed();
  SCOPED_TRACE(fmt::format("SNUG_SEED={}", seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  int offloaded = 0;
  const TrainConfig steps[] = {a_step(8, 1024, 8, 2048), a_step(4, 2048, 4, 1024), a_step(12, 512, 4, 4096)};
  for (const TrainConfig& config : steps) {
    const auto planner = make_planner(make_step(config), {.hardware = hardware_});
    const auto least = static_cast<double>(planner->offers().front().peak_bytes),
               most = static_cast<double>(planner->plain().peak_bytes);
    for (int i = 0; i < 4; ++i) {
      const auto budget =
          static_cast<std::uint64_t>(std::uniform_real_distribution(1.02 * least, most)(random));
      SCOPED_TRACE(fmt::format("{} layers of {}, budget {}", config.model.num_layers,
                               config.model.hidden_size, format_bytes(budget)));
      const auto retries = memory::process_memory(kDevice).retries;
      plan::Decision decision;
      const TrainResult result = run(config, budget, decision);
      const auto process = static_cast<double>(result.measured.memory.process_bytes);
      EXPECT_TRUE(decision.fits);
      EXPECT_LE(result.measured.memory.process_bytes, budget);
      EXPECT_NEAR(process / static_cast<double>(decision.taken.peak_bytes), 1, 0.01);
      EXPECT_EQ(result.measured.memory.retries, retries)
          << "planned " << decision.taken.peak_bytes << " of " << budget << ", process " << process
          << ", outside " << result.measured.memory.outside_bytes() << " where " << hardware_.outside_bytes
          << " were planned, " << decision.taken.host_bytes << " on the host";
      offloaded += decision.taken.host_bytes > 0;
    }
  }
  RecordProperty("offloaded", offloaded);
}

TEST_F(PlannedOnCuda, OffloadingRunsHaveOnePeak) {
  TrainConfig config = a_step(8, 1024, 8, 2048);
  config.offload = parse_offload("50%");
  std::set<std::uint64_t> peaks;
  for (int i = 0; i < 5; ++i) {
    const TrainResult result = train(config);
    EXPECT_GT(result.measured.host_bytes, 0u);
    peaks.insert(result.measured.peak.total);
    EXPECT_NEAR(static_cast<double>(result.measured.peak.total),
                static_cast<double>(result.predicted.peak.total), 64 * 1024)
        << "blocks are rounded up to 512 bytes";
  }
  EXPECT_EQ(peaks.size(), 1u);
}

}  // namespace
}  // namespace snug::train
