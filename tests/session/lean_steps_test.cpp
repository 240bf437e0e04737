// Steps that keep nothing, whenever a session has to take one: they fit wherever sending what comes into
// regions to the host makes them fit.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/out_of_budget.h"
#include "snug/session/plan_step.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"

namespace snug::lean_steps {
namespace {

constexpr std::int64_t kWidth = 64, kRows = 4096;

// Layers whose inputs are all that a step which keeps nothing must hold.
struct Net {
  explicit Net(const std::string& name, c10::Device device = c10::kCPU) : name(name) {
    at::manual_seed(3);
    for (int i = 0; i < 12; ++i)
      weights.push_back(at::randn({kWidth, kWidth}, at::TensorOptions(device)).mul_(0.1).requires_grad_());
  }
  void step(std::int64_t rows) {
    at::Tensor x = at::ones({rows, kWidth}, weights[0].options().requires_grad(false));
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region(name + std::to_string(i), [&] { return x + at::gelu(at::mm(x, weights[i])); });
    region("loss", [&] { return x.pow(2).mean(); }).backward();
  }
  void drop_gradients() {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
  std::string name;  // a region that is known by it is not proven again
  std::vector<at::Tensor> weights;
};

plan::Hardware linked() {
  plan::Hardware hardware = plan::preset("cpu");
  hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 1e10;
  return hardware;
}

Step a_step(const std::string& name, std::int64_t rows = kRows) {
  return {.on_meta = [name, rows](const Account&, const plan::Setting&) -> std::function<void()> {
    const auto net = std::make_shared<Net>(name, c10::kMeta);
    return [net, rows] {
      net->step(rows);
      net->drop_gradients();
    };
  }};
}

class LeanSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    Net before("before");
    Session session(before.weights,
                    {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu"), .say = [](const auto&) {}});
    for (int i = 0; i < 2; ++i) {
      before.step(kRows);
      before.drop_gradients();
      session.end_step();
    }
    lean = session.last_peak_bytes();
    budget = lean * 7 / 10;
  }
  SessionOptions options() {
    return {.budget_bytes = budget, .hardware = linked(), .say = [this](const std::string& text) {
              said += text + "\n";
            }};
  }
  // Empty if it ran, else the first line of what was thrown.
  std::string step(Session& session, Net& net, std::int64_t rows) {
    std::string thrown;
    try {
      session.run([&] { net.step(rows); });
    } catch (const memory::OutOfBudget& error) {
      thrown = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
    }
    net.drop_gradients();
    session.end_step();
    return thrown;
  }

  std::string name, said;
  std::uint64_t lean = 0;  // what a step needs that keeps nothing and offloads nothing
  std::uint64_t budget = 0;
};

TEST_F(LeanSteps, TheFirstUnderAGivenPlanThatOffloads) {
  for (const bool prove : {true, false}) {
    SessionOptions given = options();
    given.plan = plan_step(a_step(name), {.budget_bytes = budget, .hardware = linked()}).plan;
    given.prove = prove;
    ASSERT_GT(given.plan->predicted.host_bytes, 0u);
    Net net(name);
    Session session(net.weights, given);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "") << prove << i;
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_LE(session.measured().budget_use, budget);
  }
}

// The first region is given what the loop made and lets go of only afterwards: that stays.
TEST_F(LeanSteps, APlanMadeOnMetaIsWhatTheRunNeedsWhereABatchComesIn) {
  const plan::Plan roomy = plan_step(a_step(name), {.budget_bytes = 1_GiB, .hardware = linked()}).plan;
  std::uint64_t sent = 0;
  for (const double share : {1.2, 0.8, 0.6, 0.4, 0.3}) {
    const auto bytes = static_cast<std::uint64_t>(share * static_cast<double>(roomy.plain.peak_bytes));
    const PlannedStep planned = plan_step(a_step(name), {.budget_bytes = bytes, .hardware = linked()});
    ASSERT_TRUE(planned.decision.fits) << share;
    SessionOptions given = options();
    given.budget_bytes = bytes;
    given.plan = planned.plan;
    given.prove = false;
    Net net(name);
    Session session(net.weights, given);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(step(session, net, kRows), "") << share;
    EXPECT_EQ(session.measured().budget_use, planned.plan.predicted.peak_bytes) << share;
    EXPECT_EQ(session.measured().host_bytes, planned.plan.predicted.host_bytes) << share;
    EXPECT_TRUE(session.is_as_planned()) << said;
    sent = planned.plan.predicted.host_bytes;
  }
  EXPECT_GT(sent, 8_MiB) << "what the first layers made leaves as before";
}

TEST_F(LeanSteps, SketchedUnderAGivenPlanThatOffloads) {
  SessionOptions given = options();
  given.plan = plan_step(a_step(name), {.budget_bytes = budget, .hardware = linked()}).plan;
  given.prove = false;
  Net net(name);
  Session session(net.weights, given);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(step(session, net, kRows + 256), "") << i;
  EXPECT_EQ(session.plans_made(), 1) << said;
  EXPECT_TRUE(session.is_as_planned()) << said;
}

// It has no store at first. The first large step may run out: only then is it known that one is needed.
TEST_F(LeanSteps, UnderAGivenPlanThatOffloadsNothing) {
  SessionOptions given = options();
  given.plan = plan_step(a_step(name, 512), {.budget_bytes = budget, .hardware = plan::preset("cpu")}).plan;
  Net net(name);
  Session session(net.weights, given);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(session, net, 512), "");
  EXPECT_EQ(session.measured().host_bytes, 0u);
  step(session, net, kRows);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "") << said;
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_GT(session.plan()->predicted.host_bytes, 0u);
  EXPECT_LE(session.measured().budget_use, budget);
}

TEST_F(LeanSteps, LargerOnesAfterSmallOnesWithPlentyOfRoom) {
  for (const std::int64_t small : {64, 1024, 2048})
    for (const int times : {1, 3}) {  // the large one comes while there is no plan yet, or under one
      Net net(name);
      Session session(net.weights, options());
      for (int i = 0; i < times; ++i) EXPECT_EQ(step(session, net, small), "");
      for (int i = 0; i < 4; ++i) EXPECT_EQ(step(session, net, kRows), "") << small << " x " << times;
      EXPECT_TRUE(session.is_as_planned()) << said;
      EXPECT_GT(session.plan()->predicted.host_bytes, 0u);
      EXPECT_LE(session.measured().budget_use, budget);
    }
}

TEST_F(LeanSteps, LargerOnesAfterSmallOnesThatPassesToldOf) {
  Net net(name);
  Session session(net.weights, options());
  for (const std::int64_t rows : {512, 512, 512, 4096, 4096, 4096}) {
    ASSERT_EQ(session.passes(at::empty({1, rows}, at::kByte)).size(), 1u);
    EXPECT_EQ(step(session, net, rows), "") << rows;
  }
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_LE(session.measured().budget_use, budget);
}

// What an error says a step needs at least; 0 if it does not say.
std::uint64_t least_of(const std::string& thrown) {
  const std::size_t said = thrown.find("needs at least ");
  if (said == std::string::npos) return 0;
  return std::stoull(thrown.substr(thrown.find('(', said) + 1));
}

TEST_F(LeanSteps, WhatRunsOutSaysNoMoreThanTheStepNeeds) {
  const std::uint64_t enough = budget;
  budget = 4_MiB;
  std::string thrown;
  {
    Net net(name);
    Session session(net.weights, options());
    for (int i = 0; i < 5; ++i) thrown = step(session, net, kRows);
    EXPECT_NE(thrown.find("waits on the host"), std::string::npos) << thrown;
    EXPECT_EQ(said.find("no backward was seen"), std::string::npos) << "memory ran out: " << said;
  }
  budget = least_of(thrown);
  EXPECT_GT(budget, 4_MiB) << thrown;
  EXPECT_LT(budget, enough) << thrown;
  // Each error leads nearer to a budget that is met, and to none that is more than that.
  for (int tries = 0; tries < 20 && !thrown.empty(); ++tries) {
    Net net(name);
    Session session(net.weights, options());
    for (int i = 0; i < 3 && (i == 0 || thrown.empty()); ++i) thrown = step(session, net, kRows);
    if (!thrown.empty()) budget = least_of(thrown);
  }
  EXPECT_EQ(thrown, "");
  EXPECT_LT(budget, 9_MiB) << "that is what runs";
}

TEST_F(LeanSteps, WhatRunsOutUnderAPlanSaysHowMuchItNeeds) {
  Net net(name);
  Session session(net.weights, options());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "");
  ASSERT_TRUE(session.is_as_planned());
  const std::string larger = step(session, net, 4 * kRows);
  EXPECT_NE(larger.find("is not the one that was planned"), std::string::npos) << larger;
  EXPECT_GT(least_of(larger), budget) << larger;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "");
  ASSERT_TRUE(session.is_as_planned()) << said;
  const at::Tensor held =
      at::empty({static_cast<std::int64_t>(budget - session.predicted_bytes() + 60000)}, at::kByte);
  const std::string more = step(session, net, kRows);
  EXPECT_NE(more.find("than the plan says"), std::string::npos) << more;
  EXPECT_GT(least_of(more), budget) << more;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "") << "there is a plan with less room";
  EXPECT_TRUE(session.is_as_planned()) << said;
}

// What it left goes only with the next backward: that is no part of what a step under the plan needs.
TEST_F(LeanSteps, AfterOneThatRanOutPlansAreAsTheyWere) {
  for (const bool tells_sizes : {false, true}) {
    Net net(name);
    Session session(net.weights, options());
    const auto told_step = [&](std::int64_t rows) {
      if (tells_sizes) session.passes(at::empty({1, rows}, at::kByte));
      return step(session, net, rows);
    };
    for (int i = 0; i < 4; ++i) EXPECT_EQ(told_step(2048), "");
    const std::uint64_t predicted = session.predicted_bytes();
    EXPECT_NE(told_step(16 * kRows), "");
    EXPECT_FALSE(session.is_as_planned());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(told_step(2048), "") << i;
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_EQ(session.predicted_bytes(), predicted) << said;
    EXPECT_EQ(session.plans_made(), tells_sizes ? 1 : 2) << said;
  }
}

// A pass that the search for the largest found too large does not end it all.
TEST_F(LeanSteps, APassThatRunsOutIsFollowedBySmallerOnes) {
  Net net(name);
  Session session(net.weights, options());
  const at::Tensor batch = at::empty({8, 512}, at::kByte);
  int ran_out = 0;
  std::int64_t tried = 0;
  for (int i = 0; i < 8; ++i) {
    const std::vector<Pass> passes = session.passes(batch);
    const bool is_larger = passes[0].rows > tried;
    tried = std::max(tried, passes[0].rows);
    std::optional<at::Tensor> held;  // the user's, while passes grow
    if (i > 1 && is_larger) held = at::empty({static_cast<std::int64_t>(budget * 9 / 10)}, at::kByte);
    std::string thrown;
    try {
      session.run([&] {
        for (const Pass& pass : passes) net.step(pass.rows * 512);
      });
    } catch (const memory::OutOfBudget&) {
      ++ran_out;
    }
    held.reset();
    net.drop_gradients();
    session.end_step();
  }
  EXPECT_EQ(ran_out, 1);
  EXPECT_TRUE(session.is_as_planned()) << said;
}

// A budget that a step of kRows meets by keeping nothing, and no plan does that leaves room for an allocator.
class NoPlanFits : public LeanSteps {
 protected:
  void SetUp() override {
    LeanSteps::SetUp();
    budget = lean;
  }
  SessionOptions options() {
    SessionOptions without_link = LeanSteps::options();
    without_link.hardware = plan::preset("cpu");
    without_link.hardware->is_gpu = true;
    return without_link;
  }
  bool says(const char* part) const { return said.find(part) != std::string::npos; }
};

TEST_F(NoPlanFits, AndThoseThatAPlanIsForHaveItAgain) {
  Net net(name);
  Session session(net.weights, options());
  for (const std::int64_t rows : {1024, 1024, 1024, 4096, 4096}) EXPECT_EQ(step(session, net, rows), "");
  ASSERT_TRUE(says("no plan fits `budget`")) << said;
  EXPECT_EQ(session.plans_made(), 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(step(session, net, 1024), "");
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_EQ(session.plans_made(), 1) << "it is the one that was there";
  for (int i = 0; i < 12; ++i) EXPECT_EQ(step(session, net, i % 2 ? 1024 : kRows), "");
  EXPECT_LT(std::ranges::count(said, '\n'), 10) << "such steps are said a few times: " << said;
}

TEST_F(NoPlanFits, AndSmallerOnesHaveAPlan) {
  Net net(name);
  Session session(net.weights, options());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "");
  ASSERT_TRUE(says("no plan fits `budget`")) << said;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, 1024), "");
  EXPECT_TRUE(session.is_as_planned()) << said;
  EXPECT_EQ(session.plans_made(), 1);
}

TEST_F(NoPlanFits, AndPassesSayWhichStepsHaveAPlan) {
  Net net(name);
  Session session(net.weights, options());
  const auto told_step = [&](std::int64_t rows) {
    EXPECT_EQ(session.passes(at::empty({1, rows}, at::kByte)).size(), 1u);
    EXPECT_EQ(step(session, net, rows), "") << rows;
  };
  for (const std::int64_t rows : {1024, 1024, 1024, 4096}) told_step(rows);
  ASSERT_TRUE(says("no plan fits `budget`")) << said;
  said.clear();
  for (int i = 0; i < 3; ++i) {
    told_step(1024);
    EXPECT_TRUE(session.is_as_planned()) << i;
    told_step(kRows);
    EXPECT_FALSE(session.is_as_planned()) << i;
  }
  EXPECT_EQ(said, "") << "both are known by then";
  told_step(2048);
  EXPECT_EQ(session.plans_made(), 2) << said;
  told_step(2048);
  EXPECT_TRUE(session.is_as_planned());
}

TEST_F(NoPlanFits, FromTheFirstPassOn) {
  Net net(name);
  Session session(net.weights, options());
  const auto told_step = [&](std::int64_t rows) {
    EXPECT_EQ(session.passes(at::empty({1, rows}, at::kByte)).size(), 1u);
    EXPECT_EQ(step(session, net, rows), "") << rows;
  };
  for (int i = 0; i < 3; ++i) told_step(kRows);
  ASSERT_TRUE(says("no plan fits `budget`")) << said;
  for (int i = 0; i < 2; ++i) told_step(1024);
  EXPECT_TRUE(session.is_as_planned()) << said;
  told_step(kRows);
  EXPECT_FALSE(session.is_as_planned());
}

TEST_F(NoPlanFits, UntilTheUserHoldsLess) {
  Net net(name);
  std::optional<at::Tensor> held = at::empty({1_MiB}, at::kByte);
  SessionOptions more = options();
  more.budget_bytes = lean + 1_MiB;
  more.adopt = {*held};
  Session session(net.weights, more);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "");
  ASSERT_TRUE(says("no plan fits `budget`")) << said;
  held.reset();
  more.adopt.clear();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, net, kRows), "");
  EXPECT_TRUE(session.is_as_planned()) << said;
}

}  // namespace
}  // namespace snug::lean_steps
