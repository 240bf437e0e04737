// Steps that are launched as one CUDA graph, against the same steps launched kernel by kernel: every loss and
// norm in every digit, and the same memory of tensors. Skips loudly where there is no GPU.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/io/token_dataset.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/launch_graph.h"
#include "snug/memory/process_memory.h"
#include "snug/session/verify.h"
#include "snug/train/captured_passes.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

namespace snug::train::captured_on_cuda {
namespace {

TrainConfig small(models::ModelConfig model) {
  TrainConfig config;
  config.model_name = "small";
  config.model = model;
  config.device = c10::Device(c10::kCUDA, 0);
  config.precision = Precision::Bf16;
  config.batch_size = config.micro_batch = 4;
  config.seq_len = 128;
  config.steps = 20;
  return config;
}

TrainConfig llama() {
  return small({.vocab_size = 8192,
                .hidden_size = 256,
                .intermediate_size = 768,
                .num_layers = 8,
                .num_heads = 4,
                .num_kv_heads = 2,
                .head_dim = 64,
                .max_positions = 1024});
}

TrainConfig gpt2() {
  return small({.family = models::Family::Gpt2,
                .vocab_size = 5003,  // padded in the logits
                .hidden_size = 256,
                .intermediate_size = 1024,
                .num_layers = 8,
                .num_heads = 4,
                .num_kv_heads = 4,
                .head_dim = 64,
                .max_positions = 1024,
                .tied_embeddings = true});
}

struct Ran {
  std::vector<double> numbers;
  std::vector<std::uint64_t> peaks;
  TrainResult result;
  std::vector<std::string> said;
};

Ran run(TrainConfig config, bool graph) {
  config.graph = graph;
  Ran ran;
  ran.result = train(config, {.on_step =
                                  [&](const StepMetrics& metrics) {
                                    ran.numbers.push_back(metrics.loss);
                                    ran.numbers.push_back(metrics.gradient_norm);
                                    ran.peaks.push_back(metrics.peak_bytes);
                                  },
                              .on_trouble = [&](const std::string& text) { ran.said.push_back(text); }});
  return ran;
}

class CapturedPassesCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: steps were not captured";
  }
};

TEST_F(CapturedPassesCuda, TwentyStepsHaveTheBitsOfKernelsLaunchedOneByOne) {
  const Deterministic deterministic(c10::kCUDA);
  for (TrainConfig config : {llama(), gpt2()})
    for (const std::int64_t micro_batch : {4, 2}) {
      config.micro_batch = micro_batch;
      SCOPED_TRACE(config.model.vocab_size * 10 + micro_batch);
      const Ran one_by_one = run(config, false), captured = run(config, true);
      EXPECT_EQ(one_by_one.result.graph_steps, 0);
      // These steps are the host's: a GPU needs a fraction of a millisecond.
      EXPECT_GE(captured.result.graph_steps, 10);
      EXPECT_EQ(captured.said, std::vector<std::string>());
      EXPECT_EQ(captured.numbers, one_by_one.numbers);
      // A graph reads the generator's seed and offset, and takes cuBLAS's workspace of the backward only
      // then.
      EXPECT_NEAR(static_cast<double>(captured.result.measured.peak.total),
                  static_cast<double>(one_by_one.result.measured.peak.total), 1024);
      EXPECT_LE(captured.peaks.back(), one_by_one.peaks.back() + 1024);
      EXPECT_GE(captured.peaks.back() + 32_MiB, one_by_one.peaks.back());
    }
}

TEST_F(CapturedPassesCuda, WhatIsRecomputedIsSoByEveryLaunch) {
  const Deterministic deterministic(c10::kCUDA);
  for (const Recompute recompute : {Recompute::Cheap, Recompute::Block}) {
    TrainConfig config = llama();
    config.recompute = recompute;
    const Ran one_by_one = run(config, false), captured = run(config, true);
    EXPECT_GE(captured.result.graph_steps, 10);
    EXPECT_EQ(captured.said, std::vector<std::string>());
    EXPECT_EQ(captured.numbers, one_by_one.numbers);
  }
}

TEST_F(CapturedPassesCuda, APlanLeavesRoomForTheGraph) {
  const Deterministic deterministic(c10::kCUDA);
  TrainConfig config = llama();
  config.seq_len = 256;
  train(config);  // loads what a step loads
  plan::Hardware hardware = machine::hardware_of(config.device);
  hardware.outside_bytes = memory::process_memory(config.device).outside_bytes() + 8_MiB;
  const Step step = make_step(config);
  const auto planner = make_planner(step, {.hardware = hardware});
  const std::uint64_t least = planner->offers().front().peak_bytes, plain = planner->plain().peak_bytes;
  for (const double share : {0.4, 0.8, 1.5}) {
    const auto budget =
        least + 64_MiB + static_cast<std::uint64_t>(share * static_cast<double>(plain - least));
    SCOPED_TRACE(format_bytes(budget));
    const PlannedStep planned = plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner);
    ASSERT_TRUE(planned.decision.fits);
    EXPECT_EQ(planned.plan.budget_bytes, budget);
    TrainConfig within = config;
    take(planned.plan, within);
    machine::give_back_cache(config.device);
    const Ran one_by_one = run(within, false);
    machine::give_back_cache(config.device);
    const Ran captured = run(within, true);
    EXPECT_EQ(captured.said, std::vector<std::string>());
    EXPECT_EQ(captured.numbers, one_by_one.numbers);
    EXPECT_LE(captured.result.measured.budget_use, budget);
    if (planned.plan.predicted.host_bytes == 0) {
      EXPECT_GE(captured.result.graph_steps, 10);
    }
  }
}

struct ByHand {
  at::Tensor weight = at::ones({64}, at::TensorOptions(at::kCUDA)).requires_grad_();
  std::vector<std::string> said;
  CapturedPasses passes{{weight}, [this](const std::string& text) { said.push_back(text); }};
  int launched = 0;  // one by one

  io::Batch batch(std::int64_t rows, std::int64_t value) const {
    const at::Tensor tokens = at::full({rows, 64}, value, at::TensorOptions(at::kCUDA).dtype(at::kLong));
    return {tokens, tokens};
  }
  // The gradient is the sum of the rows.
  enum class Synchronizes { Never, InForward, InBackward };
  double gradient_of(const io::Batch& batch, std::int64_t targets,
                     Synchronizes synchronizes = Synchronizes::Never) {
    const at::Tensor loss = passes.run(batch, targets, [&](const io::Batch& given) {
      ++launched;
      const at::Tensor all = (given.tokens * weight).sum();
      if (synchronizes == Synchronizes::InForward) static_cast<void>(all.item<float>());
      if (synchronizes == Synchronizes::InBackward)
        all.register_hook([](const at::Tensor& grad) { static_cast<void>(grad.item<float>()); });
      all.backward();
      return all.detach();
    });
    const double gradient = weight.grad()[0].item<double>();
    EXPECT_EQ(loss.item<double>(), gradient * 64);
    weight.mutable_grad().reset();
    passes.note_step(/*host_was_slower=*/true);
    return gradient;
  }
};

TEST_F(CapturedPassesCuda, AGraphIsForStepsThatAreAlike) {
  ByHand one;
  for (int i = 1; i <= 6; ++i) EXPECT_EQ(one.gradient_of(one.batch(2, i), 128), 2 * i);
  EXPECT_EQ(one.passes.steps(), 3);
  EXPECT_EQ(one.launched, 4) << "three steps, and the graph";
  EXPECT_EQ(one.gradient_of(one.batch(3, 5), 192), 15) << "another size";
  EXPECT_FALSE(one.passes.has_graph());
  for (int i = 1; i <= 6; ++i) one.gradient_of(one.batch(2, i), 128);
  EXPECT_TRUE(one.passes.has_graph());
  one.gradient_of(one.batch(2, 5), 127);
  EXPECT_FALSE(one.passes.has_graph()) << "another number of targets";
  EXPECT_TRUE(one.said.empty());
}

TEST_F(CapturedPassesCuda, WhatCannotBeCapturedIsLaunchedOneByOne) {
  const c10::Device device(c10::kCUDA, 0);
  for (const auto synchronizes : {ByHand::Synchronizes::InForward, ByHand::Synchronizes::InBackward}) {
    ByHand one;
    for (int i = 1; i <= 8; ++i) EXPECT_EQ(one.gradient_of(one.batch(2, i), 128, synchronizes), 2 * i);
    EXPECT_EQ(one.passes.steps(), 0);
    EXPECT_EQ(one.launched, 9) << "once in vain";
    ASSERT_EQ(one.said.size(), 1u);
    EXPECT_NE(one.said[0].find("captur"), std::string::npos) << one.said[0];
    // Torch is out of the capture too.
    at::rand({8}, at::TensorOptions(device));
    memory::empty_cuda_cache();
    const std::uint64_t before = memory::process_memory(device).reserved_bytes;
    at::empty({1 << 30}, at::TensorOptions(device).dtype(at::kByte));
    EXPECT_GT(memory::process_memory(device).reserved_bytes, before);
    memory::empty_cuda_cache();
    EXPECT_EQ(memory::process_memory(device).reserved_bytes, before);
  }
}

}  // namespace
}  // namespace snug::train::captured_on_cuda
