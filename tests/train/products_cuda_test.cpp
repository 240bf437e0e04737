// The algorithms of matrix products that a run has computed with are in its plan.json, and whoever trains
// with that plan takes them. Skips loudly where there is no GPU.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/machine/hardware_of.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/support/temporary_folder.h"

namespace snug::train::products_on_cuda {
namespace {

// Products of more than 4 GFLOP.
TrainConfig planned() {
  TrainConfig config;
  config.model_name = "wide";
  config.model = {.vocab_size = 8192,
                  .hidden_size = 2048,
                  .intermediate_size = 5632,
                  .num_layers = 2,
                  .num_heads = 16,
                  .num_kv_heads = 16,
                  .head_dim = 128,
                  .max_positions = 1024};
  config.device = c10::Device(c10::kCUDA, 0);
  config.precision = Precision::Bf16;
  config.batch_size = config.micro_batch = 4;
  config.seq_len = 512;
  config.steps = 2;
  const Step step = make_step(config);
  take(plan_step(step, {.budget_bytes = 20_GiB, .hardware = machine::hardware_of(config.device)}).plan,
       config);
  return config;
}

TEST(ProductsOnCuda, AreInThePlanOfTheRunAndTakenFromIt) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: no product was computed";
  const testing::TemporaryFolder folder;
  std::vector<std::string> said;
  const auto say = [&](const std::string& text) { said.push_back(text); };
  TrainConfig config = planned();
  train(config, {.out_dir = folder / "run", .on_trouble = say});
  plan::Plan ran = plan::load_plan(folder / "run/plan.json");
  EXPECT_GE(ran.products.size(), 8u);
  EXPECT_EQ(said, std::vector<std::string>());

  take(ran, config);
  train(config, {.out_dir = folder / "again", .on_trouble = say});
  EXPECT_EQ(plan::load_plan(folder / "again/plan.json"), ran);
  EXPECT_EQ(said, std::vector<std::string>());
}

}  // namespace
}  // namespace snug::train::products_on_cuda
