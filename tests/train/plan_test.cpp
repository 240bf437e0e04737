// The promise: what was predicted before the first step is what the run then needs, and never more than the
// budget.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"
#include "tests/support/random_suite.h"

namespace snug::train {
namespace {

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

TrainConfig random_step(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<std::int64_t> from) {
    return from.begin()[std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random)];
  };
  TrainConfig config;
  config.model_name = "random";
  const std::int64_t head = pick({8, 16, 32}), kv_heads = pick({1, 2, 4});
  std::int64_t heads = kv_heads * pick({1, 2, 3});
  while (heads * head < 48) heads *= 2;
  config.model = {.vocab_size = pick({64, 300, 512}),
                  .hidden_size = std::min<std::int64_t>(heads * head, 512),
                  .intermediate_size = pick({96, 176, 344}),
                  .num_layers = pick({1, 2, 3, 5, 8, 12}),
                  .num_heads = heads,
                  .num_kv_heads = kv_heads,
                  .head_dim = head,
                  .max_positions = 256,
                  .tied_embeddings = pick({0, 1}) == 1};
  config.precision = pick({0, 0, 1}) == 1 ? Precision::Bf16 : Precision::Fp32;
  config.batch_size = pick({2, 4, 6});
  config.seq_len = pick({33, 64, 128});
  config.micro_batch = config.batch_size;
  config.steps = 2;
  config.optimizer.kind = pick({0, 0, 1}) == 1 ? OptimizerKind::Sgd : OptimizerKind::AdamW;
  return config;
}

struct Case {
  TrainConfig config;
  std::shared_ptr<plan::Planner> planner;
  std::uint64_t budget = 0;
};

std::shared_ptr<plan::Planner> planner_of(const TrainConfig& config,
                                          const std::vector<std::int64_t>& micro_batches = {},
                                          const plan::Hardware& hardware = plan::preset("cpu")) {
  return make_planner(make_step(config, micro_batches), {.hardware = hardware});
}

plan::Plan plan_for(const plan::Planner& planner, const TrainConfig& config, std::uint64_t budget) {
  return planner.write_down(planner.decide(budget), identity_of(make_step(config)));
}

// A budget between 0.35 of the plain peak, or the smallest plan, and `most` of the plain peak; a step that
// has none is drawn again.
Case random_case(std::mt19937& random, double most, const plan::Hardware& hardware = plan::preset("cpu")) {
  for (;;) {
    const TrainConfig config = random_step(random);
    const auto planner = planner_of(config, {}, hardware);
    const auto plain = static_cast<double>(planner->plain().peak_bytes);
    const double least = std::max(0.35 * plain, static_cast<double>(planner->offers().front().peak_bytes));
    if (least > most * plain) continue;
    const double budget = std::uniform_real_distribution<double>(least, most * plain)(random);
    return {config, planner, static_cast<std::uint64_t>(std::ceil(budget))};
  }
}

struct Tried {
  std::uint64_t predicted = 0, measured = 0;
  std::uint64_t host = 0;
};

Tried run(const Case& tried) {
  TrainConfig config = tried.config;
  const plan::Decision decision = tried.planner->decide(tried.budget);
  check(decision.fits, "the budget was drawn to fit");
  take(plan_for(*tried.planner, config, tried.budget), config);
  const TrainResult result =
      train(config, {.on_trouble = [](const std::string& text) { ADD_FAILURE() << text; }});
  EXPECT_LE(decision.taken.peak_bytes, tried.budget);
  EXPECT_LE(result.measured.peak.total, tried.budget);
  EXPECT_EQ(result.measured.host_bytes > 0, decision.taken.host_bytes > 0);
  EXPECT_GE(result.measured.host_bytes, decision.taken.host_bytes);
  return {decision.taken.peak_bytes, result.measured.peak.total, result.measured.host_bytes};
}

void expect_near(const Tried& tried, double share) {
  EXPECT_NEAR(static_cast<double>(tried.measured), static_cast<double>(tried.predicted),
              share * static_cast<double>(tried.predicted));
}

TEST(PlannedRuns, NeedWhatWasPredictedOnOneThread) {
  const Threads one(1);
  const std::uint64_t seed = random_suite::seed();
  SCOPED_TRACE(fmt::format("SNUG_SEED={}", seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < 30; ++i) {
    const Case drawn = random_case(random, i < 22 ? 0.799 : 1.0);
    SCOPED_TRACE(to_json(drawn.config).dump() + fmt::format(" budget {}", drawn.budget));
    const Tried tried = run(drawn);
    EXPECT_EQ(tried.measured, tried.predicted);
  }
}

TEST(PlannedRuns, NeedWhatWasPredictedWhereThereIsALink) {
  const Threads one(1);
  plan::Hardware hardware = plan::preset("cpu");
  hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 2e10;
  const std::uint64_t seed = random_suite::seed();
  SCOPED_TRACE(fmt::format("SNUG_SEED={}", seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  int offloaded = 0;
  for (int i = 0; i < 20; ++i) {
    const Case drawn = random_case(random, 0.8, hardware);
    SCOPED_TRACE(to_json(drawn.config).dump() + fmt::format(" budget {}", drawn.budget));
    const Tried tried = run(drawn);
    EXPECT_EQ(tried.measured, tried.predicted);
    offloaded += tried.host > 0;
  }
  EXPECT_GT(offloaded, 5);
}

TEST(PlannedRuns, StayWithinTheBudgetOnTwoThreads) {
  const Threads two(2);
  const std::uint64_t seed = random_suite::seed();
  SCOPED_TRACE(fmt::format("SNUG_SEED={}", seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int i = 0; i < 10; ++i) {
    const Case drawn = random_case(random, 0.9);
    SCOPED_TRACE(to_json(drawn.config).dump() + fmt::format(" budget {}", drawn.budget));
    expect_near(run(drawn), 0.02);
  }
}

TrainConfig twelve_layers() {
  TrainConfig config;
  config.model_name = "twelve layers";
  config.model = {.vocab_size = 512,
                  .hidden_size = 128,
                  .intermediate_size = 344,
                  .num_layers = 12,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .head_dim = 32,
                  .max_positions = 256};
  config.steps = 2;
  return config;
}

TEST(PlannedRuns, FitAThirdOfThePlainPeakAtTheSameMicroBatch) {
  const Threads one(1);
  const TrainConfig config = twelve_layers();
  Case smallest{config, planner_of(config, {8})};
  smallest.budget = smallest.planner->offers().front().peak_bytes;
  EXPECT_LE(static_cast<double>(smallest.budget),
            0.35 * static_cast<double>(smallest.planner->plain().peak_bytes));
  const Tried tried = run(smallest);
  EXPECT_EQ(tried.predicted, smallest.budget);
  EXPECT_EQ(tried.measured, smallest.budget);
}

// A vocabulary whose logits are most of the memory: cutting the head is then the first lever.
TEST(PlannedRuns, TheHeadIsCutIntoMorePieces) {
  const Threads one(1);
  TrainConfig config = twelve_layers();
  config.model.num_layers = 1;
  config.model.vocab_size = 4096;
  config.steps = 2;
  Case cut{config, planner_of(config, {8})};
  const std::uint64_t plain = cut.planner->plain().peak_bytes;
  EXPECT_TRUE(cut.planner->decide(plain).levers.empty()) << "what fits is left as it is";
  const auto is_cut = [&](const plan::Offer& offer) {
    return cut.planner->candidate(offer).setting[plan::kHeadChunks] == 4;
  };
  const auto offer = std::ranges::find_if(cut.planner->offers(), is_cut);
  ASSERT_NE(offer, cut.planner->offers().end());
  cut.budget = offer->peak_bytes;
  const plan::Decision decision = cut.planner->decide(cut.budget);
  EXPECT_EQ(decision.levers.front().name, "head_chunks");
  EXPECT_GT(decision.levers.front().cost_seconds, 0);
  const Tried tried = run(cut);
  EXPECT_EQ(tried.measured, tried.predicted);
  const plan::Plan plan = plan_for(*cut.planner, config, cut.budget);
  EXPECT_EQ(plan::plan_from_json(plan::to_json(plan), "a plan"), plan);
}

TEST(PlannedRuns, LearnExactlyWhatThePlainRunLearns) {
  const Threads one(1);
  TrainConfig config = twelve_layers();
  config.model.num_layers = 3;
  config.steps = 4;
  const auto planner = planner_of(config, {config.micro_batch});
  const TrainResult plain = train(config);
  config.plan = plan_for(*planner, config, planner->offers().front().peak_bytes);
  const TrainResult planned = train(config);
  EXPECT_LT(planned.measured.peak.total, plain.measured.peak.total / 2);
  EXPECT_EQ(*planned.last_loss, *plain.last_loss);
}

TEST(Planning, MoreMemoryIsNeverSlowerAndWhatIsMissingIsEnough) {
  const TrainConfig config = twelve_layers();
  const auto planner = planner_of(config);
  const std::uint64_t plain = planner->plain().peak_bytes;
  double last = std::numeric_limits<double>::infinity();
  for (std::uint64_t budget = plain / 50; budget <= plain + plain / 10; budget += plain / 500) {
    const plan::Decision decision = planner->decide(budget);
    EXPECT_LE(decision.taken.seconds, last * (1 + 1e-6));
    EXPECT_GE(decision.taken.seconds, decision.bound_seconds);
    if (decision.fits) last = decision.taken.seconds;
    EXPECT_EQ(decision.fits, decision.missing_bytes == 0);
    if (!decision.fits) {
      EXPECT_TRUE(planner->decide(budget + decision.missing_bytes).fits);
      EXPECT_FALSE(planner->decide(budget + decision.missing_bytes - 1).fits);
    }
  }
}

// The cap that the run will set leaves what the allocator needs, and page tables are counted.
TEST(Planning, OnAGpuTheAllocatorFitsBesideThePageTablesOfWhatIsOffloaded) {
  TrainConfig config = twelve_layers();
  config.model.num_layers = 4;
  config.device = c10::Device(c10::kCUDA, 0);
  plan::Hardware hardware = plan::preset("h200");
  hardware.matmul_flops_fp32 /= 1000;  // so that moving values is worth it
  const Step step = make_step(config, {8});
  const auto planner = make_planner(step, {.hardware = hardware});
  std::vector<std::uint64_t> budgets;
  for (const plan::Offer& offer : planner->offers()) budgets.push_back(offer.peak_bytes + 32_MiB);
  int moving = 0;
  for (const std::uint64_t budget : budgets) {
    const PlannedStep planned = plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner);
    if (planned.decision.taken.host_bytes == 0) continue;
    ++moving;
    take(planned.plan, config);
    const Prediction needed = predict(config, {.device_bytes = hardware.memory_bytes});
    EXPECT_TRUE(planned.decision.fits);
    EXPECT_GE(needed.outside_bytes, hardware.outside_bytes + needed.host_bytes / 512);
    EXPECT_LE(needed.least_budget(), budget);
  }
  EXPECT_GT(moving, 0);
}

// A share may have been cut to what the host holds: to any.
TEST(Planning, BetweenSharesAreOnlyShares) {
  const Step step = make_step(twelve_layers());
  for (const plan::LeverKind& kind : {plan::kStatesOnHost, plan::kGradientsOnHost, plan::kWeightsOnHost})
    for (std::int64_t share = 1; share <= 100; ++share) {
      plan::Setting setting = step.settings.front();
      setting.levers[kind.name] = share;
      for (const plan::Setting& finer : step.finer(setting)) {
        EXPECT_GT(finer[kind], 0) << kind.name << " " << share;
        EXPECT_LT(finer[kind], share) << kind.name;
      }
    }
}

// As much of everything is there as there is room for, and never more.
TEST(Planning, WhatIsTooMuchForTheHostIsPlannedWithAsMuchAsItHolds) {
  TrainConfig config = twelve_layers();
  config.model.hidden_size = 1024;
  config.model.intermediate_size = 2816;
  config.model.head_dim = 256;
  config.device = c10::Device(c10::kCUDA, 0);
  const plan::Hardware hardware = plan::preset("h200");
  const Step step = make_step(config, {config.batch_size}, &hardware);
  const auto leanest = [&](std::uint64_t host_budget) {
    return plan_step(step, {.budget_bytes = 1, .host_budget_bytes = host_budget, .hardware = hardware})
        .decision.taken;
  };
  const plan::Offer most = leanest(std::uint64_t{1} << 40), none = leanest(0);
  ASSERT_GT(most.host_bytes, 0u);
  EXPECT_EQ(none.host_bytes, 0u);
  std::uint64_t last = most.peak_bytes;
  for (const std::uint64_t tenths : {9, 7, 5, 3, 1}) {
    const std::uint64_t budget = most.host_bytes * tenths / 10;
    const plan::Offer some = leanest(budget);
    SCOPED_TRACE(fmt::format("{} of {} bytes", budget, most.host_bytes));
    EXPECT_LE(some.host_bytes, budget);
    EXPECT_GE(some.host_bytes, budget - most.host_bytes / 20) << "there was room";
    EXPECT_GT(some.peak_bytes, last);
    EXPECT_LT(some.peak_bytes, none.peak_bytes);
    last = some.peak_bytes;
  }
}

TEST(Planning, APlanForAnotherStepIsRefusedWithTheReason) {
  const TrainConfig config = twelve_layers();
  const auto planner = planner_of(config, {4});
  const plan::Plan plan = plan_for(*planner, config, planner->offers().front().peak_bytes);
  check_plan(plan, config);
  const auto refuses = [&](const TrainConfig& other, const plan::Plan& given, const std::string& says) {
    try {
      check_plan(given, other);
      ADD_FAILURE() << "was not refused: " << says;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  TrainConfig longer = config;
  longer.seq_len = 255;
  refuses(longer, plan, "seq_len 256, here 255");
  TrainConfig wider = config;
  wider.model.hidden_size = 256;
  refuses(wider, plan, "architecture");
  plan::Plan edited = plan;
  edited.regions[1].recompute.push_back({999, 0, "aten::mul.Tensor"});
  refuses(config, edited, "999.0 aten::mul.Tensor");
  edited = plan;
  edited.regions[1].structure ^= 1;
  refuses(config, edited, "layers.0");
  edited = plan;
  edited.regions.pop_back();
  refuses(config, edited, "no region \"head\"");
  edited = plan;
  edited.setting.levers[plan::kMicroBatch.name] = 3;
  refuses(config, edited, "micro_batch 3");
  edited = plan;
  edited.step["torch"] = "1.0.0";
  refuses(config, edited, "torch \"1.0.0\"");
}

TEST(Planning, ALargerShapeThanPlannedIsPlannedAgainAndLearnsTheSame) {
  const Threads one(1);
  TrainConfig config = twelve_layers();
  config.model.num_layers = 2;
  config.steps = 4;
  const TrainResult plain = train(config);
  const auto planner = planner_of(config, {4});
  config.plan = plan_for(*planner, config, planner->plain().peak_bytes);
  config.budget_bytes = plain.measured.peak.total;
  config.micro_batch = 8;  // the plan is for 4
  std::vector<std::string> said;
  const TrainResult result =
      train(config, {.on_trouble = [&](const std::string& text) { said.push_back(text); }});
  EXPECT_EQ(result.last_loss, plain.last_loss);
  EXPECT_LE(result.measured.peak.total, *config.budget_bytes);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find("than the plan's"), std::string::npos) << said[0];
}

TEST(Plan, ThePlainStepDoesNotDependOnTheBudget) {
  TrainConfig config;
  config.model = {.vocab_size = 512,
                  .hidden_size = 256,
                  .intermediate_size = 688,
                  .num_layers = 4,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .head_dim = 64,
                  .max_positions = 512};
  config.device = c10::kCUDA;
  config.precision = Precision::Bf16;
  config.batch_size = config.micro_batch = 8;
  config.seq_len = 512;
  const plan::Hardware hardware = plan::preset("rtx4090");
  const Step step = make_step(config);
  const auto planner = make_planner(step, {.hardware = hardware});
  const std::uint64_t plain =
      hardware.outside_bytes + predict(config, {.device_bytes = hardware.memory_bytes}).reserved_bytes;
  for (const std::uint64_t budget : {plain - 40_MiB, plain - 80_MiB, plain - 120_MiB, plain + 1_GiB}) {
    const plan::Decision decision =
        plan_step(step, {.budget_bytes = budget, .hardware = hardware}, planner).decision;
    EXPECT_TRUE(decision.fits) << budget;
    EXPECT_NEAR(decision.plain.peak_bytes, plain, 1) << budget;  // it comes from a share
    EXPECT_EQ(decision.levers.empty(), budget > plain) << budget;
  }
}

}  // namespace
}  // namespace snug::train
