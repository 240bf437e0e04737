// What torch's CUDA allocator makes of a step under a plan, from the step's sketch alone, is what it makes of
// the step as it runs under that plan. Meta stands for the GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "snug/capture/capture.h"
#include "snug/hooks/meta_target.h"
#include "snug/plan/fitted.h"
#include "snug/plan/step_allocations.h"
#include "snug/train/planning.h"
#include "snug/train/step.h"
#include "tests/support/live_log.h"

namespace snug::train {
namespace {

TrainConfig random_gpu_step(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<std::int64_t> from) {
    return from.begin()[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random)];
  };
  TrainConfig config;
  config.model_name = "random";
  const auto family = static_cast<models::Family>(pick({0, 0, 2, 3, 4}));
  const bool is_gpt2 = family == models::Family::Gpt2;
  const std::int64_t head = pick({64, 128}), kv_heads = pick({1, 2, 4}), heads = kv_heads * pick({1, 2, 4});
  config.model = {.family = family,
                  .vocab_size = pick({8192, 32768, 50257}),
                  .hidden_size = heads * head,
                  .intermediate_size = pick({2, 3, 4}) * heads * head,
                  .num_layers = pick({1, 2, 3, 5, 8}),
                  .num_heads = heads,
                  .num_kv_heads = is_gpt2 ? heads : kv_heads,
                  .head_dim = head,
                  .max_positions = 4096,
                  .tied_embeddings = is_gpt2 || pick({0, 1}) == 1};
  config.device = c10::Device(c10::kCUDA, 0);
  config.precision = static_cast<Precision>(pick({0, 1, 1, 2}));
  config.batch_size = config.micro_batch = pick({2, 4, 6});
  config.seq_len = pick({128, 512, 1000, 2048});
  config.optimizer.kind = pick({0, 0, 1}) == 1 ? OptimizerKind::Sgd : OptimizerKind::AdamW;
  config.update = pick({0, 1}) == 1 ? optim::UpdateTime::BeforeForward : optim::UpdateTime::InStep;
  return config;
}

// As predict() runs it.
LiveLog run_logged(const TrainConfig& config, int steps) {
  const hooks::MetaTargetScope target(config.device.type());
  LiveLog log;
  capture::capture(c10::kMeta,
                   [&](memory::Tracker& tracker) {
                     TrainingSetup setup(config, c10::kMeta, Account(tracker));
                     const auto recording = make_recording(treatment(config), {.prove = false});
                     for (int step = 0; step < steps; ++step) {
                       run_meta_step(setup, config, Account(tracker));
                       if (recording) recording->end_step();
                     }
                   },
                   {.sink = &log, .workspaces = false});
  return log;
}

// True if something of it waits on the host.
bool expect_same(const TrainConfig& config, const plan::Planner& planner, const plan::Offer& offer,
                 std::uint64_t device_bytes) {
  TrainConfig planned = config;
  take(planner.write_down(planner.about(offer, offer.peak_bytes), identity_of(make_step(config))), planned);
  SCOPED_TRACE(to_json(planned).dump());
  const plan::StepModel& model = *planner.candidate(offer).model;
  const int steps = plan::steps_to_settle(model.streamed().leaves_gradients());
  const Prediction ran = predict(planned, {.device_bytes = device_bytes});
  LiveLog sketched;
  plan::replay_steps(model.timeline(), model.fates(offer.chosen), {.count = steps, .is_new = true}, sketched);
  const auto logged = run_logged(planned, steps).taken;
  const auto at = std::ranges::mismatch(sketched.taken, logged);
  EXPECT_TRUE(sketched.taken == logged)
      << "of " << sketched.taken.size() << " and " << logged.size() << " allocations, the first to differ is "
      << at.in1 - sketched.taken.begin() << "; " << offer.host_bytes << " bytes are moved";
  EXPECT_EQ(sketched.ledger.peak_bytes(), ran.peak.total);
  EXPECT_EQ(offer.tensor_bytes, ran.peak.total);
  const plan::Reserved found = plan::reserved(model, offer.chosen, {device_bytes});
  EXPECT_EQ(found.bytes, ran.reserved_bytes);
  EXPECT_EQ(found.needed_limit, ran.needed_cap_bytes);
  return offer.host_bytes > 0;
}

TEST(SketchedAllocations, AreThoseOfTheStepUnderItsPlan) {
  std::mt19937 random(11);
  int moved = 0;
  for (int i = 0; i < 40; ++i) {
    const TrainConfig config = random_gpu_step(random);
    plan::Hardware hardware = plan::preset("h200");
    if (i % 2 == 0) hardware.matmul_flops_bf16 /= 100, hardware.matmul_flops_fp32 /= 100;  // moving pays
    const auto planner = make_planner(make_step(config), {.hardware = hardware});
    const auto& offers = planner->offers();
    for (int k = 0; k < 8 && !HasFailure(); ++k) {
      const std::size_t number = std::uniform_int_distribution<std::size_t>(0, offers.size() - 1)(random);
      moved += expect_same(config, *planner, offers[number], hardware.memory_bytes);
    }
  }
  EXPECT_GT(moved, 80);
}

}  // namespace
}  // namespace snug::train
