// Loops that somebody wrote to break a session, and did.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/region.h"
#include "snug/host/store.h"
#include "snug/memory/out_of_budget.h"
#include "snug/optim/adamw.h"
#include "snug/session/plan_step.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"
#include "tests/support/temporary_folder.h"

namespace snug::strangers {
namespace {

constexpr std::int64_t kWidth = 64;

class Strangers : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  SessionOptions options(std::uint64_t budget) {
    return {.budget_bytes = budget, .hardware = plan::preset("cpu"), .say = [this](const std::string& text) {
              said += text + "\n";
            }};
  }
  static plan::Hardware linked() {
    plan::Hardware hardware = plan::preset("cpu");
    hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 1e10;
    return hardware;
  }
  // Sixteen budgets up to the highest. What a step that keeps nothing does not fit is no test: the first two
  // say so; no later one may.
  void every_budget(
      std::vector<at::Tensor>& parameters, const plan::Hardware& hardware, std::uint64_t highest,
      const std::function<void(int)>& step, const std::function<void(Session&)>& look = [](Session&) {}) {
    constexpr int kBudgets = 16, kSteps = 8;
    int met = 0;
    for (int k = kBudgets; k > 0; --k) {
      const std::uint64_t budget = highest - highest / 2 * (kBudgets - k) / kBudgets;
      SCOPED_TRACE(format_bytes(budget));
      said.clear();
      SessionOptions some = options(budget);
      some.hardware = hardware;
      Session session(parameters, some);
      int number = 0;
      try {
        for (; number < kSteps; ++number) {
          step(number);
          for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
          session.end_step();
          if (number >= 3) look(session);
        }
        ++met;
      } catch (const memory::OutOfBudget& error) {
        for (at::Tensor& parameter : parameters) {
          parameter.requires_grad_();
          parameter.mutable_grad().reset();
        }
        EXPECT_LT(number, 2) << said << error.what();
      }
      EXPECT_LE(session.measured().budget_use, budget) << said;
    }
    EXPECT_GE(met, 4);
  }
  std::string said;
};

std::vector<at::Tensor> weights(int count, std::int64_t width = kWidth) {
  std::vector<at::Tensor> made;
  for (int i = 0; i < count; ++i) made.push_back(at::randn({width, width}).mul_(0.05).requires_grad_());
  return made;
}

void drop_gradients(std::vector<at::Tensor>& parameters) {
  for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

at::Tensor loss_of(const std::vector<at::Tensor>& parameters, at::Tensor x) {
  for (std::size_t k = 0; k < parameters.size(); ++k)
    x = region("l" + std::to_string(k), [&] { return at::gelu(at::mm(x, parameters[k])); });
  return region("loss", [&] { return x.pow(2).mean(); });
}

// Gradients and states are as large as the weights, and a row is nothing beside them.
TEST_F(Strangers, PassesGrowBesideAnOptimizer) {
  for (const std::uint64_t budget : {17_MiB, 21_MiB, 40_MiB}) {
    SCOPED_TRACE(format_bytes(budget));
    std::vector<at::Tensor> parameters = weights(3, 512);
    parameters.insert(parameters.begin(), at::randn({8, 512}).mul_(0.1).requires_grad_());
    torch::optim::AdamW optimizer(parameters);
    Session session(parameters, options(budget));
    std::size_t passes = 0;
    for (int step = 0; step < 10; ++step) {
      at::Tensor batch = at::randn({256, 8});
      const auto split = session.passes(batch);
      passes = split.size();
      for (const Pass& pass : split) (loss_of(parameters, pass.of(batch)) * pass.share).backward();
      optimizer.step();
      optimizer.zero_grad();
      batch.reset();
      session.end_step();
    }
    EXPECT_LE(passes, 8u) << said;
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_LE(session.measured().budget_use, budget);
  }
}

// While it learns how large a pass may be, every batch has another length.
TEST_F(Strangers, APlanIsForTheLengthThatWasSketched) {
  std::vector<at::Tensor> parameters = weights(4);
  Session session(parameters, options(600 * 1024));
  int as_planned = 0;
  for (const std::int64_t length : {16, 16, 4, 8, 16, 16, 16, 16, 16, 16, 16, 16}) {
    const at::Tensor batch = at::randn({24, length, kWidth});
    for (const Pass& pass : session.passes(batch))
      (loss_of(parameters, pass.of(batch).reshape({-1, kWidth})) * pass.share).backward();
    drop_gradients(parameters);
    session.end_step();
    as_planned += session.is_as_planned();
  }
  EXPECT_GE(as_planned, 5) << said;
  EXPECT_TRUE(session.is_as_planned()) << said;
}

// The short ones are done sooner, and say nothing of how large a pass may be.
TEST_F(Strangers, AShortBatchInBetweenDoesNotMakeAllPassesSmall) {
  std::vector<at::Tensor> parameters = weights(4);
  Session session(parameters, options(900 * 1024));
  std::size_t passes = 0;
  for (const std::int64_t length : {32, 32, 32, 2, 32, 2, 32, 32, 32, 32, 32, 32}) {
    const at::Tensor batch = at::randn({16, length, kWidth});
    const auto split = session.passes(batch);
    passes = split.size();
    for (const Pass& pass : split)
      (loss_of(parameters, pass.of(batch).reshape({-1, kWidth})) * pass.share).backward();
    drop_gradients(parameters);
    session.end_step();
  }
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_LE(passes, 8u) << said;
  EXPECT_LE(session.measured().budget_use, 900u * 1024);
}

// Nothing in the region needs a gradient, so nothing of it is kept.
TEST_F(Strangers, WhatARegionWasGivenAndNobodyKeepsLivesAsLongAsItDoes) {
  for (const std::uint64_t budget : {545'000, 560'000, 600'000, 1'000'000'000}) {
    std::vector<at::Tensor> parameters = weights(1);
    SessionOptions some = options(budget);
    some.prove = false;
    Session session(parameters, some);
    for (int step = 0; step < 5; ++step) {
      at::Tensor x = at::randn({256, kWidth}), loss;
      {
        const at::Tensor a = region("r", [&] { return x.cumsum(1) * 0.1; });
        const at::Tensor b = a + x, c = at::mm(b, parameters[0]), d = at::relu(c) + b;
        loss = a.pow(2).mean() + c.pow(2).mean() + d.pow(2).mean();
      }
      x.reset();
      loss.backward();
      loss.reset();
      drop_gradients(parameters);
      session.end_step();
    }
    if (!session.plan()) continue;  // nothing fits but what keeps nothing
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_EQ(session.plans_made(), 1) << said;
    EXPECT_GE(session.predicted_bytes(), session.last_peak_bytes()) << budget;
  }
}

// The discriminator is trained on two batches, then the generator through it: one region, two structures.
TEST_F(Strangers, PassesOfAStepMayDiffer) {
  std::vector<at::Tensor> critic = weights(3), maker = weights(3), all = critic;
  all.insert(all.end(), maker.begin(), maker.end());
  const auto through = [](const char* name, const std::vector<at::Tensor>& some, at::Tensor x) {
    for (std::size_t k = 0; k < some.size(); ++k)
      x = region(name + std::to_string(k), [&] { return at::gelu(at::tanh(at::mm(x, some[k]))); });
    return x;
  };
  int planned = 0;
  every_budget(
      all, plan::preset("cpu"), /*highest=*/1152 * 1024,
      [&](int) {
        const at::Tensor noise = at::randn({192, kWidth}), real = at::randn({256, kWidth});
        {
          at::Tensor made;
          {
            const at::NoGradGuard no_grad;
            made = through("maker", maker, noise);
          }
          (through("critic", critic, real).mean() - through("critic", critic, made).mean()).backward();
        }
        for (at::Tensor& weight : critic) weight.requires_grad_(false);
        through("critic", critic, through("maker", maker, noise)).mean().backward();
        for (at::Tensor& weight : critic) weight.requires_grad_();
      },
      [&](Session& session) {
        if (!session.plan()) return;
        ++planned;
        EXPECT_TRUE(session.is_as_planned()) << said;
        EXPECT_EQ(session.predicted_bytes(), session.last_peak_bytes()) << said;
        EXPECT_EQ(session.plans_made(), 1) << said;
        EXPECT_EQ(plan::plan_from_json(to_json(*session.plan()), "a plan"), *session.plan());
      });
  EXPECT_GE(planned, 10);
}

TEST_F(Strangers, AnEmptySliceOfWhatComesInIsNoReasonToStop) {
  std::vector<at::Tensor> parameters = weights(4);
  every_budget(parameters, linked(), /*highest=*/1024 * 1024, [&](int) {
    at::Tensor x = at::randn({256, kWidth}).requires_grad_();
    for (std::size_t k = 0; k < parameters.size(); ++k)
      x = region("l" + std::to_string(k), [&] {
        const at::Tensor none = x.slice(0, 0, 0);
        return at::gelu(at::mm(at::cat({x, none.mul(none)}), parameters[k]));
      });
    x.pow(2).mean().backward();
  });
}

// The second loss goes first in every other step.
TEST_F(Strangers, TwoBackwardsMayComeInEitherOrder) {
  std::vector<at::Tensor> parameters = weights(6);
  every_budget(parameters, linked(), /*highest=*/1280 * 1024, [&](int step) {
    const at::Tensor batch = at::randn({256, kWidth});
    at::Tensor losses[2];
    for (int k = 0; k < 2; ++k)
      losses[k] = loss_of({parameters.begin() + 3 * k, parameters.begin() + 3 * k + 3}, batch);
    for (int k = 0; k < 2; ++k) std::exchange(losses[(k + step) % 2], {}).backward();
  });
}

TEST_F(Strangers, APlanThatSaysNothingOfRowsLeavesTheBatchWhole) {
  const Step step{.on_meta = [](const Account&, const plan::Setting&) -> std::function<void()> {
    const auto parameters = std::make_shared<std::vector<at::Tensor>>();
    for (int i = 0; i < 3; ++i)
      parameters->push_back(at::empty({kWidth, kWidth}, c10::kMeta).requires_grad_());
    return [=] {
      loss_of(*parameters, at::empty({256, kWidth}, c10::kMeta)).backward();
      drop_gradients(*parameters);
    };
  }};
  const plan::Plan plan = plan_step(step, {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu")}).plan;
  EXPECT_EQ(plan::plan_from_json(to_json(plan), "a plan"), plan);
  std::vector<at::Tensor> parameters = weights(3);
  Session session(parameters, {.plan = plan, .hardware = plan::preset("cpu")});
  EXPECT_EQ(session.passes(at::randn({256, kWidth})).size(), 1u);
}

TEST_F(Strangers, ALoopThatAsksForPassesLaterKeepsItsPlan) {
  std::vector<at::Tensor> parameters = weights(3);
  Session session(parameters, options(1_GiB));
  for (int step = 0; step < 6; ++step) {
    const at::Tensor batch = at::randn({16, kWidth});
    if (step >= 3) {
      EXPECT_EQ(session.passes(batch).size(), 1u) << said;
    }
    loss_of(parameters, batch).backward();
    drop_gradients(parameters);
    session.end_step();
  }
}

TEST_F(Strangers, SparseTensorsAreNoReasonToStop) {
  std::vector<at::Tensor> parameters{at::randn({100, kWidth}).requires_grad_()};
  Session session(parameters, options(1_MiB));
  for (int step = 0; step < 4; ++step) {
    at::embedding(parameters[0], at::arange(8), -1, false, /*sparse=*/true).tanh().sum().backward();
    EXPECT_TRUE(parameters[0].grad().is_sparse());
    drop_gradients(parameters);
    session.end_step();
  }
}

TEST_F(Strangers, APlanAboveTheBudgetGivenWithItIsRefused) {
  plan::Plan plan{.predicted = {.peak_bytes = 2_MiB}};
  EXPECT_NE(testing::message_of<Error>([&] {
              Session({}, {.plan = plan, .budget_bytes = 1_MiB});
            }).find("the plan needs 2.0 MiB, `budget` is 1.0 MiB"),
            std::string::npos);
}

// torch's own encoder compares tensors, and its attention has no kernel on Meta: a plan comes from a step
// here.
TEST_F(Strangers, StandardAttentionIsPlannedWhereItRuns) {
  at::manual_seed(3);
  std::vector<torch::nn::TransformerEncoderLayer> layers;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 4; ++i) {
    layers.emplace_back(torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(128).dropout(0));
    for (const at::Tensor& parameter : layers.back()->parameters()) parameters.push_back(parameter);
  }
  const at::Tensor batch = at::randn({32, 16, kWidth});  // positions, rows
  const auto backward = [&] {
    at::Tensor x = batch;
    for (std::size_t i = 0; i < layers.size(); ++i)
      x = region("encoder" + std::to_string(i), [&] {
        const at::Tensor heads = layers[i]->forward(x).view({32, 16, 4, kWidth / 4}).permute({1, 2, 0, 3});
        const at::Tensor mixed = at::scaled_dot_product_attention(heads, heads, heads, {}, 0, true);
        return x + mixed.permute({2, 0, 1, 3}).reshape({32, 16, kWidth});
      });
    x.square().mean().backward();
  };
  std::vector<at::Tensor> expected;
  std::uint64_t plain = 0;
  {
    Session session(parameters, {});
    backward();
    session.end_step();
    plain = session.measured().budget_use;
  }
  for (at::Tensor& parameter : parameters) expected.push_back(std::exchange(parameter.mutable_grad(), {}));
  int planned = 0;
  every_budget(
      parameters, plan::preset("cpu"), plain,
      [&](int) {
        backward();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << i;
      },
      [&](Session& session) { planned += session.plan() && session.is_as_planned(); });
  EXPECT_GT(planned, 8);
}

TEST_F(Strangers, ABudgetIsOfTheDeviceOnWhichTheParametersAre) {
  const std::vector<at::Tensor> here = weights(2), meta{at::empty({3}, at::kMeta)};
  EXPECT_NE(testing::message_of<Error>([&] {
              Session(meta, {.device = at::kCPU, .budget_bytes = 1_GiB});
            }).find("`device` is cpu, and all parameters are on meta"),
            std::string::npos);
  EXPECT_NE(testing::message_of<Error>([&] {
              Session({here[0], meta[0]}, {.budget_bytes = 1_GiB});
            }).find("the parameters are not all on cpu: say by `device`"),
            std::string::npos);
  Session({here[0], meta[0]}, {.device = at::kCPU, .budget_bytes = 1_GiB});
}

TEST_F(Strangers, AStepThatKeepsNothingAndDoesNotFitSaysWhatWould) {
  std::vector<at::Tensor> parameters = weights(4);
  const at::Tensor batch = at::randn({256, kWidth});
  const auto message = [&](bool splits) {
    Session session(parameters, options(160 * 1024));
    return testing::message_of<memory::OutOfBudget>([&] {
      session.run([&] {
        if (splits) session.passes(at::randn({1, 256, kWidth}));
        loss_of(parameters, batch).backward();
      });
    });
  };
  EXPECT_NE(message(false).find("keeps nothing that can be recomputed. So run it needs at least 1"),
            std::string::npos)
      << message(false);
  EXPECT_NE(message(false).find("split the batch with Session::passes()"), std::string::npos);
  EXPECT_NE(message(true).find("a pass is one already"), std::string::npos) << message(true);
  drop_gradients(parameters);
}

// Whoever came first, the session or the optimizer; between regions there is code of nobody's.
TEST_F(Strangers, UpdatesThatWaitForTheNextForwardAreNoPartOfIt) {
  constexpr std::int64_t kWide = 160;
  const auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 1_GiB});
  const auto train = [&](const optim::Placement& placement, bool with_session, bool session_first) {
    at::manual_seed(5);
    std::vector<at::Tensor> parameters = weights(4, kWide);
    for (std::size_t k = 0; k < parameters.size(); ++k)
      hooks::bind_parameters(hooks::region_id("l" + std::to_string(k)), parameters[k]);
    std::optional<optim::AdamW> optimizer;
    std::optional<Session> session;
    const auto make_optimizer = [&] {
      optimizer.emplace(parameters, optim::AdamWOptions{.lr = 1e-2, .placement = placement});
    };
    if (!session_first) make_optimizer();
    if (with_session) session.emplace(parameters, options(3_MiB));
    if (session_first) make_optimizer();
    for (int step = 0; step < 8; ++step) {
      at::Tensor x = at::randn({192, kWide});
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        x = region("l" + std::to_string(k), [&] { return at::gelu(at::mm(x, parameters[k])); });
        x = at::tanh(x) * 1.5;
      }
      x.pow(2).mean().backward();
      x.reset();
      optimizer->step();
      optimizer->zero_grad();
      if (session) session->end_step();
    }
    optimizer->finish();
    if (session) {
      EXPECT_TRUE(session->is_as_planned()) << said;
      EXPECT_EQ(session->plans_made(), 1) << said;
    }
    return parameters;
  };
  const std::vector<at::Tensor> plain = train({}, false, true);
  for (const bool with_session : {false, true})
    for (const bool session_first : {false, true}) {
      const auto trained = train({1, store, optim::UpdateTime::BeforeForward}, with_session, session_first);
      for (std::size_t k = 0; k < plain.size(); ++k)
        EXPECT_TRUE(at::equal(trained[k], plain[k])) << k << with_session << session_first;
    }
}

TEST_F(Strangers, AHostBudgetOfNothingIsNothing) {
  std::vector<at::Tensor> parameters = weights(6);
  SessionOptions some = options(2_MiB);
  some.hardware = linked();
  some.host_budget_bytes = 0;
  Session session(parameters, some);
  for (int step = 0; step < 4; ++step) {
    loss_of(parameters, at::randn({512, kWidth})).backward();
    drop_gradients(parameters);
    session.end_step();
  }
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_EQ(session.measured().host_bytes, 0u);
}

TEST_F(Strangers, ALoopOnAnotherThreadIsTold) {
  std::vector<at::Tensor> parameters = weights(2);
  Session session(parameters, options(1_GiB));
  std::thread([&] {
    for (int step = 0; step < 6; ++step) {
      loss_of(parameters, at::randn({4, kWidth})).backward();
      session.end_step();
    }
  }).join();
  EXPECT_NE(said.find("a session sees what runs on the thread that made it"), std::string::npos) << said;
  EXPECT_EQ(session.plans_made(), 0);
}

TEST_F(Strangers, ASessionMayEndOnAnotherThread) {
  const int threads = at::get_num_threads();
  auto session = std::make_unique<Session>(weights(1), options(1_GiB));
  std::thread([&] { session.reset(); }).join();
  EXPECT_EQ(at::get_num_threads(), threads);
  Session(weights(1), options(1_GiB));
  EXPECT_EQ(at::get_num_threads(), threads);
}

}  // namespace
}  // namespace snug::strangers
