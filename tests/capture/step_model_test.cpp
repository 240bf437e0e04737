// Choices, search and the timeline together, on sketches of real models.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

#include "snug/capture/sketch.h"
#include "snug/models/llama.h"
#include "snug/plan/bound.h"
#include "snug/plan/cost.h"
#include "snug/plan/search.h"
#include "snug/plan/step_model.h"

namespace snug::capture {
namespace {

using plan::StepModel;

StepModel model_of(std::int64_t layers, std::int64_t batch, std::size_t passes) {
  const models::LlamaConfig config{.vocab_size = 512,
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
    for (const plan::Point& point : frontier)
      ASSERT_EQ(model.peak_bytes(point.chosen), point.peak_bytes);
    EXPECT_EQ(model.peak_bytes(model.all_kept()), frontier.back().peak_bytes);
    EXPECT_EQ(model.seconds(model.all_kept()), frontier.back().seconds);
  }
}

TEST(StepModelOfLlama, Prints) {
  using Clock = std::chrono::steady_clock;
  auto t0 = Clock::now();
  const StepModel model = model_of(12, 8, 1);
  auto t1 = Clock::now();
  const plan::Frontier frontier = plan::search(model.problem());
  auto t2 = Clock::now();
  printf("model %.3f s search %.3f s\n", std::chrono::duration<double>(t1 - t0).count(), std::chrono::duration<double>(t2 - t1).count());
  for (std::size_t i = 0; i < model.regions().size(); i += 6) {
    printf("%s %zu choices\n", model.regions()[i].name.c_str(), model.regions()[i].choices->size());
    for (const auto& c : *model.problem().regions[i]) printf("  kept %.2f fwd %.2f bwd %.2f MiB s %.4f\n", c.kept_bytes / 1048576.0, c.forward_bytes / 1048576.0, c.backward_bytes / 1048576.0, c.backward_seconds);
  }
  printf("floor %.2f MiB fixed %.3f s\n", model.problem().floor_bytes / 1048576.0, model.problem().fixed_seconds);
  for (std::size_t i = 0; i < frontier.size(); i += frontier.size() / 20 + 1)
    printf("%.2f MiB (exact %.2f) %.4f s bound %.4f\n", frontier[i].peak_bytes / 1048576.0, model.peak_bytes(frontier[i].chosen) / 1048576.0, frontier[i].seconds, plan::lower_bound(model.problem(), frontier[i].peak_bytes));
}

}  // namespace
}  // namespace snug::capture
