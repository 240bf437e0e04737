// Choices, search and the timeline together, on sketches of real models.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "snug/capture/sketch.h"
#include "snug/models/llama.h"
#include "snug/plan/bound.h"
#include "snug/plan/cost.h"
#include "snug/plan/search.h"
#include "snug/plan/step_model.h"
#include "snug/tape/region.h"

namespace snug::capture {
namespace {

using plan::StepModel;

StepModel model_of(std::int64_t layers, std::int64_t batch, std::size_t passes) {
  const models::ModelConfig config{.vocab_size = 512,
                                   .hidden_size = 128,
                                   .intermediate_size = 344,
                                   .num_layers = layers,
                                   .num_heads = 4,
                                   .num_kv_heads = 4,
                                   .head_dim = 32,
                                   .max_positions = 256};
  auto sketched = sketch([&](memory::Tracker& tracker) {
    models::Llama model(config, at::TensorOptions(c10::kMeta).dtype(at::kFloat));
    tracker.adopt(model->parameters(), trace::Category::Parameter);
    const auto tokens = at::empty({batch, 256}, at::TensorOptions(at::kLong).device(c10::kMeta));
    for (std::size_t pass = 0; pass < passes; ++pass) model->loss_sum(tokens, tokens).backward();
  });
  const plan::Hardware cpu = plan::preset("cpu");
  return StepModel(std::move(sketched), static_cast<double>(passes),
                   [&](const trace::Work& work) { return plan::seconds(work, cpu); });
}

TEST(StepModelOfLlama, EveryPointOfTheFrontierHasThePeakThatTheTimelineSays) {
  for (const std::size_t passes : {1u, 2u}) {
    const StepModel model = model_of(6, 8, passes);
    const plan::Frontier frontier = plan::search(model.problem());
    ASSERT_GT(frontier.size(), 20u);
    for (const plan::Point& point : frontier) ASSERT_EQ(model.peak_bytes(point.chosen), point.peak_bytes);
    EXPECT_EQ(model.peak_bytes(model.all_kept()), frontier.back().peak_bytes);
    EXPECT_EQ(model.seconds(model.all_kept()), frontier.back().seconds);
  }
}

TEST(StepModelOfLlama, AnyChoiceIsWhatTheChainSaysAndNeverFasterThanTheBound) {
  const StepModel model = model_of(4, 4, 2);
  std::mt19937 random(17);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::uint32_t> chosen;
    for (const auto& region : model.regions())
      chosen.push_back(static_cast<std::uint32_t>(
          std::uniform_int_distribution<std::size_t>(0, region.choices->size() - 1)(random)));
    const plan::Outcome outcome = plan::evaluate(model.problem(), chosen);
    ASSERT_EQ(model.peak_bytes(chosen), outcome.peak_bytes) << "choice " << i;
    ASSERT_GE(outcome.seconds, plan::lower_bound(model.problem(), outcome.peak_bytes));
  }
}

// Outputs that their own region and the next one save, behind a region without a backward.
TEST(StepModelOfAnything, SharedOutputsAndFrozenRegionsAreNotCountedTwice) {
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(at::empty({64, 64}, c10::kMeta).requires_grad_(i > 0));
  auto sketched = sketch([&](memory::Tracker&) {
    at::Tensor x = at::empty({128, 64}, c10::kMeta);
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region("l" + std::to_string(i), [&] { return at::relu(at::gelu(at::mm(x, weights[i]))); });
    region("loss", [&] { return x.pow(2).sum(); }).backward();
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
  });
  const plan::Hardware cpu = plan::preset("cpu");
  const StepModel model(std::move(sketched), 1,
                        [&](const trace::Work& work) { return plan::seconds(work, cpu); });
  const plan::Frontier frontier = plan::search(model.problem());
  ASSERT_GT(frontier.size(), 3u);
  for (const plan::Point& point : frontier) {
    EXPECT_EQ(model.peak_bytes(point.chosen), point.peak_bytes);
    EXPECT_GE(point.seconds, plan::lower_bound(model.problem(), point.peak_bytes));
  }
}

}  // namespace
}  // namespace snug::capture
