// States, gradients and weights on the host while a real model trains on a GPU: every loss has the bits of
// the run in which all is on the device. Skips loudly where there is no GPU.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <vector>

#include "snug/session/verify.h"
#include "snug/train/trainer.h"

namespace snug::train::placement_on_cuda {
namespace {

TrainConfig small_llama() {
  TrainConfig config;
  config.model_name = "small";
  config.model = {.vocab_size = 8192,
                  .hidden_size = 512,
                  .intermediate_size = 1536,
                  .num_layers = 5,
                  .num_heads = 8,
                  .num_kv_heads = 4,
                  .head_dim = 64,
                  .max_positions = 1024};
  config.device = c10::Device(c10::kCUDA, 0);
  config.batch_size = 4;
  config.seq_len = 256;
  config.steps = 20;
  return config;
}

std::vector<double> losses_of(const TrainConfig& config) {
  std::vector<double> losses;
  train(config, {.on_step = [&](const StepMetrics& metrics) {
          losses.push_back(metrics.loss);
          losses.push_back(metrics.gradient_norm);
        }});
  return losses;
}

TEST(PlacementOnCuda, TwentyStepsHaveTheBitsOfTheDevice) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: placements were not trained with";
  const Deterministic deterministic(c10::kCUDA);
  for (const Precision precision : {Precision::Bf16, Precision::Fp16})
    for (const std::int64_t micro_batch : {4, 2}) {
      TrainConfig config = small_llama();
      config.precision = precision;
      config.micro_batch = micro_batch;
      config.optimizer.clip = micro_batch == 4 ? 1 : 0;
      config.recompute = micro_batch == 2 ? Recompute::Block : Recompute::None;
      SCOPED_TRACE(to_json(config).dump());
      const std::vector<double> plain = losses_of(config);
      ASSERT_EQ(losses_of(config), plain) << "a run is not repeated to the bit";
      std::vector updates{optim::UpdateTime::InStep, optim::UpdateTime::BeforeForward};
      if (config.optimizer.clip == 0 && precision == Precision::Bf16)
        updates.push_back(optim::UpdateTime::InBackward);
      for (const auto update : updates)
        for (const auto& [states, gradients, weights, stepped] : {std::tuple(60, 0, 0, 0),
                                                                  {100, 0, 0, 50},
                                                                  {0, 50, 50, 0},
                                                                  {100, 100, 100, 0},
                                                                  {100, 100, 100, 50}}) {
          config.update = update;
          config.states_on_host = states;
          config.gradients_on_host = gradients;
          config.weights_on_host = weights;
          config.stepped_on_host = stepped;
          EXPECT_EQ(losses_of(config), plain)
              << states << " " << gradients << " " << weights << " " << stepped << " " << name(update);
        }
    }
}

}  // namespace
}  // namespace snug::train::placement_on_cuda
