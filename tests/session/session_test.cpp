#include "snug/session/session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/capture.h"
#include "snug/session/plan_step.h"
#include "snug/tape/region.h"

namespace snug {
namespace {

constexpr std::int64_t kWidth = 64;

struct Net {
  std::vector<at::Tensor> weights;

  explicit Net(c10::Device device) {
    at::manual_seed(3);
    for (int i = 0; i < 4; ++i)
      weights.push_back(at::randn({kWidth, kWidth}, at::TensorOptions(device)).requires_grad_());
  }
  at::Tensor loss(at::Tensor x, bool other = false) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region("layer" + std::to_string(i), [&] {
        const at::Tensor h = at::gelu(at::mm(x, weights[i]));
        return other ? at::sin(h).exp() + x : at::tanh(h) * at::sigmoid(h) + x;
      });
    x = region("views only", [&] { return x.view({-1}).view({-1, kWidth}); });
    return region("loss", [&] { return x.pow(2).mean(); });
  }
  void drop_gradients() {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
};

Step a_step() {
  return {.on_meta = [](const Account&, const plan::Setting&) -> std::function<void()> {
    const auto net = std::make_shared<Net>(c10::kMeta);
    return [net] {
      net->loss(at::empty({256, kWidth}, c10::kMeta)).backward();
      net->drop_gradients();
    };
  }};
}

std::uint64_t share_of_plain(double share) {
  const PlannedStep plain = plan_step(a_step(), {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu")});
  return static_cast<std::uint64_t>(share * static_cast<double>(plain.plan.plain.peak_bytes));
}

PlannedStep planned(double share) {
  return plan_step(a_step(), {.budget_bytes = share_of_plain(share), .hardware = plan::preset("cpu")});
}

std::vector<at::Tensor> gradients_of_a_step(Net& net, const at::Tensor& batch) {
  net.drop_gradients();
  net.loss(batch).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : net.weights) gradients.push_back(weight.grad());
  return gradients;
}

TEST(SessionTest, NeedsWhatWasPlannedAndChangesNoBit) {
  at::set_num_threads(1);
  const PlannedStep half = planned(0.6);
  Net net(c10::kCPU);
  const at::Tensor batch = at::randn({256, kWidth});
  const auto plain = gradients_of_a_step(net, batch);
  net.drop_gradients();
  Session session(net.weights,
                  {.plan = half.plan, .say = [](const std::string& text) { ADD_FAILURE() << text; }});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor in_account = at::empty({256, kWidth}).copy_(batch);
    const auto lean = gradients_of_a_step(net, in_account);
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(plain[k], lean[k]));
    net.drop_gradients();
    session.end_step();
  }
  EXPECT_EQ(session.measured().budget_use, session.predicted_bytes());
  EXPECT_LE(session.measured().budget_use, half.plan.budget_bytes);
  EXPECT_TRUE(session.is_as_planned());
}

TEST(SessionTest, HoldsTheBudget) {
  const PlannedStep half = planned(0.6);
  Net net(c10::kCPU);
  Session session(net.weights, {.plan = half.plan});
  EXPECT_THROW(at::empty({static_cast<std::int64_t>(half.plan.budget_bytes)}, at::kByte),
               c10::OutOfMemoryError);
}

// The step of a Net with or without the other operators, and what a session said meanwhile.
class SessionTold {
 public:
  explicit SessionTold(const plan::Plan& plan) : net(c10::kCPU) {
    SessionOptions options = told();
    options.plan = plan;
    session.emplace(net.weights, options);
  }
  explicit SessionTold(std::uint64_t budget) : net(c10::kCPU) {
    SessionOptions options = told();
    options.budget_bytes = budget;
    session.emplace(net.weights, options);
  }
  struct Pass {
    bool other = false;
    std::int64_t rows = 256;
  };
  void pass(const Pass& pass) { net.loss(at::empty({pass.rows, kWidth}).normal_(), pass.other).backward(); }
  void pass() { pass(Pass{}); }
  void end_step() {
    net.drop_gradients();
    session->end_step();
  }
  void step(const Pass& pass) {
    this->pass(pass);
    end_step();
  }
  void step() { step(Pass{}); }

  Net net;
  std::vector<std::string> said;
  std::optional<Session> session;

 private:
  SessionOptions told() {
    return {.hardware = plan::preset("cpu"),
            .say = [this](const std::string& text) { said.push_back(text); }};
  }
};

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(SessionTest, AnotherModelThanPlannedIsPlannedAgainFromAStepOfItsOwn) {
  at::set_num_threads(1);
  const PlannedStep most = planned(0.8);
  SessionTold told(most.plan);
  for (int i = 0; i < 4; ++i) told.step({.other = true});
  EXPECT_GT(told.session->plans_made(), 0);
  EXPECT_TRUE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 2u);
  EXPECT_NE(told.said[0].find("layer0"), std::string::npos) << told.said[0];
  EXPECT_NE(told.said[1].find("planned from a step of this run"), std::string::npos) << told.said[1];
  EXPECT_EQ(told.session->measured().budget_use, told.session->predicted_bytes());
  EXPECT_LE(told.session->measured().budget_use, most.plan.budget_bytes);
}

TEST(SessionTest, OtherOperatorsForAWhileHaveAPlanOfTheirOwnThatIsUsedAgain) {
  at::set_num_threads(1);
  SessionTold told(planned(0.8).plan);
  for (const bool other : {false, false, true, true, true, false, false, true, true})
    told.step({.other = other});
  EXPECT_EQ(told.session->plans_made(), 1) << "both are known by then";
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_EQ(told.said.size(), 2u);
  EXPECT_LE(told.session->measured().budget_use, told.session->plan()->budget_bytes);
}

TEST(SessionTest, AStructureThatChangesFromStepToStepRunsAndIsSaidAFewTimes) {
  at::set_num_threads(1);
  SessionTold told(planned(1.0).plan);
  for (int i = 0; i < 30; ++i) told.step({.other = i % 3 == 1});
  ASSERT_FALSE(told.said.empty());
  EXPECT_LT(told.said.size(), 9u);
  EXPECT_TRUE(says(told.said.back(), "steps differ too much")) << told.said.back();
  EXPECT_LE(told.session->measured().budget_use, told.session->plan()->budget_bytes);
}

TEST(SessionTest, APlanForAnotherDeviceOrTorchIsRefused) {
  for (const char* key : {"device", "torch"}) {
    plan::Plan other = planned(1.0).plan;
    other.step[key] = "another";
    EXPECT_THROW(Session(Net(c10::kCPU).weights, {.plan = other}), Error) << key;
  }
}

TEST(SessionTest, AnEvaluationMayBeLargerThanTheStep) {
  const PlannedStep roomy = planned(1.0);
  Net net(c10::kCPU);
  Session session(net.weights, {.plan = roomy.plan});
  at::NoGradGuard no_grad;
  net.loss(at::randn({300, kWidth}));
}

TEST(SessionTest, ALargerStepThanPlannedRunsIsSaidAndMakesANewPlanAsOftenAsItGrows) {
  at::set_num_threads(1);
  SessionTold told(planned(2.0).plan);
  told.step();  // proven
  int plans = 0;
  for (const std::int64_t rows : {320, 384, 448}) {
    told.step({.rows = rows});
    EXPECT_FALSE(told.session->plans_made() > plans);
    EXPECT_TRUE(says(told.said.back(), "layer0")) << told.said.back();
    told.step({.rows = rows});
    EXPECT_EQ(told.session->plans_made(), ++plans) << rows;
    told.step({.rows = rows});
    EXPECT_TRUE(told.session->is_as_planned()) << rows;
    EXPECT_EQ(told.session->last_peak_bytes(), told.session->predicted_bytes()) << rows;
  }
  EXPECT_EQ(told.said.size(), 6u);
}

// In a region that is larger than planned nothing is kept from its first value on.
TEST(SessionTest, ALargerStepThanPlannedStaysWithinABudgetThatOnlyALeanOneMeets) {
  at::set_num_threads(1);
  SessionTold told(planned(0.95).plan);
  for (const std::int64_t rows : {256, 256, 400, 256, 400, 400, 400, 256}) told.step({.rows = rows});
  EXPECT_GT(told.session->plans_made(), 0);
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_LE(told.session->measured().budget_use, told.session->plan()->budget_bytes);
}

TEST(SessionTest, ASmallerStepThanPlannedRunsUnderThePlan) {
  at::set_num_threads(1);
  const plan::Plan given = planned(0.6).plan;
  SessionTold told(given);
  for (const std::int64_t rows : {256, 128, 256, 192, 256}) told.step({.rows = rows});
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_EQ(told.session->plans_made(), 0);
  EXPECT_EQ(*told.session->plan(), given);
  EXPECT_EQ(told.session->measured().budget_use, given.predicted.peak_bytes);
  EXPECT_TRUE(told.said.empty());
}

TEST(SessionTest, APlanOfASmallerStepDoesNotTakeThePlaceOfALargerOnes) {
  at::set_num_threads(1);
  SessionTold told(share_of_plain(1.5));
  for (const std::int64_t rows : {256, 256, 320, 128, 320, 320, 320}) told.step({.rows = rows});
  EXPECT_TRUE(told.session->is_as_planned());
  for (const std::int64_t rows : {128, 320}) {
    told.step({.rows = rows});
    EXPECT_TRUE(told.session->is_as_planned()) << rows;
  }
}

TEST(SessionTest, ANewPlanIsForTheLargestPassOfItsStep) {
  SessionTold told(1_GiB);
  for (int i = 0; i < 4; ++i) {
    for (const std::int64_t rows : {128, 256}) told.pass({.rows = rows});
    told.end_step();
  }
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_EQ(told.said.size(), 1u);
  for (const plan::RegionPlan& region : told.session->plan()->regions)
    if (region.region == "layer0") {
      EXPECT_GE(region.bytes, 256u * kWidth * sizeof(float) * 5);
    }
}

// From the second pass on there are gradients, which a sketch of one pass did not have.
TEST(SessionTest, MorePassesThanPlannedRunLeanAndMakeAPlanOfTheirOwn) {
  at::set_num_threads(1);
  SessionTold told(share_of_plain(0.8));
  for (int i = 0; i < 4; ++i) told.step();
  EXPECT_TRUE(told.session->is_as_planned());
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 3; ++i) told.pass();
    told.end_step();
  }
  EXPECT_EQ(told.session->plans_made(), 2);
  EXPECT_EQ(told.session->last_peak_bytes(), told.session->predicted_bytes());
  EXPECT_TRUE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 3u);
  EXPECT_TRUE(says(told.said[1], "in a second pass")) << told.said[1];
  EXPECT_LE(told.session->measured().budget_use, told.session->plan()->budget_bytes);
}

// What the program holds more than it did when the step was sketched.
TEST(SessionTest, MoreMemoryThanANewPlanPredictsMakesOneWithLessRoom) {
  at::set_num_threads(1);
  const std::uint64_t budget = share_of_plain(0.8);
  SessionTold told(budget);
  for (int i = 0; i < 4; ++i) told.step();
  const auto room = static_cast<std::int64_t>(budget - told.session->predicted_bytes());
  ASSERT_GT(room, static_cast<std::int64_t>(budget / 50)) << "else the step itself throws";
  const at::Tensor held = at::empty({room}, at::kByte);
  for (int i = 0; i < 3; ++i) told.step();
  EXPECT_EQ(told.session->plans_made(), 2);
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_LE(told.session->last_peak_bytes(), told.session->predicted_bytes());
  EXPECT_LE(told.session->predicted_bytes(), budget);
  ASSERT_EQ(told.said.size(), 3u);
  EXPECT_TRUE(says(told.said[1], "were predicted")) << told.said[1];
}

TEST(SessionTest, AnOutputThatIsHeldAndNeverAskedForIsNoPartOfThePlan) {
  SessionTold told(share_of_plain(1.5));
  at::Tensor logged;
  for (int i = 0; i < 4; ++i) {
    logged = region("auxiliary", [&] { return at::tanh(told.net.weights[0]).sum(); });
    told.step();
  }
  EXPECT_GT(told.session->plans_made(), 0);
  EXPECT_TRUE(told.session->is_as_planned());
}

TEST(SessionTest, AGraphThatIsHeldInTheSketchedStepMakesTheNextOneBeSketched) {
  at::set_num_threads(1);
  SessionTold told(share_of_plain(1.5));
  told.step();
  at::Tensor held = told.net.loss(at::empty({256, kWidth}).normal_());
  held.backward({}, /*retain_graph=*/true);
  told.end_step();
  ASSERT_EQ(told.said.size(), 1u);
  EXPECT_NE(told.said[0].find("still there"), std::string::npos) << told.said[0];
  told.pass();
  held.reset();  // in the middle of a step that is sketched
  told.end_step();
  told.step();
  EXPECT_GT(told.session->plans_made(), 0);
  EXPECT_TRUE(told.session->is_as_planned()) << told.said.back();
}

TEST(SessionTest, ALoopWhoseGraphsAlwaysStayIsLeanAfterAFewTries) {
  SessionTold told(share_of_plain(1.5));
  at::Tensor held;
  for (int i = 0; i < 8; ++i) {
    held = told.net.loss(at::empty({256, kWidth}).normal_());
    held.backward({}, /*retain_graph=*/true);
    told.end_step();
  }
  EXPECT_FALSE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 4u);
  EXPECT_TRUE(says(told.said[3], "everything is recomputed from now on")) << told.said[3];
}

TEST(SessionTest, ATrackerInsideChangesNothing) {
  at::set_num_threads(1);
  const PlannedStep half = planned(0.6);
  SessionTold told(half.plan);
  for (int i = 0; i < 3; ++i) {
    memory::Tracker looking;
    told.step();
    EXPECT_GT(looking.peak_bytes(), 0u);
  }
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_EQ(told.session->measured().budget_use, told.session->predicted_bytes());
}

TEST(SessionTest, WhatIsOlderThanTheSessionCountsIfItIsAdopted) {
  const at::Tensor state = at::empty({1 << 20}, at::kByte);
  Net net(c10::kCPU);
  Session session(net.weights, {.plan = planned(1.5).plan, .adopt = {state}});
  session.end_step();
  EXPECT_EQ(session.measured().budget_use, 4 * kWidth * kWidth * sizeof(float) + (1 << 20));
}

TEST(SessionTest, MemoryThatTheGivenPlanDidNotHaveMakesANewOne) {
  at::set_num_threads(1);
  plan::Plan plan = planned(0.75).plan;
  const std::uint64_t extra = plan.budget_bytes / 10;
  plan.budget_bytes += extra / 2;  // room for a step that is not what was planned
  SessionTold told(plan);
  const at::Tensor held_by_the_user = at::empty({static_cast<std::int64_t>(extra / 2)}, at::kByte);
  for (int i = 0; i < 5; ++i) told.step();
  EXPECT_EQ(told.session->plans_made(), 1);
  EXPECT_EQ(told.said.size(), 2u);
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_LE(told.session->measured().budget_use, plan.budget_bytes);
}

TEST(SessionTest, ABudgetAloneCountsWhatTheUserHolds) {
  at::set_num_threads(1);
  const std::uint64_t budget = share_of_plain(0.75);
  SessionTold told(budget);
  const at::Tensor held_by_the_user = at::empty({static_cast<std::int64_t>(budget / 20)}, at::kByte);
  for (int i = 0; i < 5; ++i) told.step();
  EXPECT_EQ(told.session->plans_made(), 1);
  EXPECT_EQ(told.said.size(), 1u);
  EXPECT_EQ(told.session->measured().budget_use, told.session->predicted_bytes());
  EXPECT_LE(told.session->measured().budget_use, budget);
}

// Batches in passes that the session chooses: gradients as of the whole batch, within the budget.
TEST(SessionTest, ABudgetAloneSplitsTheBatch) {
  at::set_num_threads(1);
  const at::Tensor batch = at::randn({16, 16, kWidth});
  Net net(c10::kCPU);
  net.loss(batch.view({-1, kWidth})).backward();
  std::vector<at::Tensor> expected;
  for (const at::Tensor& weight : net.weights) expected.push_back(weight.grad().clone());
  for (const double share : {0.4, 0.6, 2.0}) {
    net.drop_gradients();
    const std::uint64_t budget = share_of_plain(share);
    std::vector<std::string> said;
    Session session(net.weights, {.budget_bytes = budget,
                                  .hardware = plan::preset("cpu"),
                                  .say = [&](const std::string& text) { said.push_back(text); }});
    std::size_t passes = 0;
    for (int step = 0; step < 8; ++step) {
      const auto parts = session.passes(batch);
      passes = parts.size();
      EXPECT_TRUE(parts.back().is_last);
      for (const Pass& pass : parts) (net.loss(pass.of(batch).reshape({-1, kWidth})) * pass.share).backward();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::allclose(net.weights[i].grad(), expected[i], 1e-4, 1e-9)) << share;
      net.drop_gradients();
      session.end_step();
    }
    ASSERT_NE(session.plan(), nullptr);
    EXPECT_TRUE(session.is_as_planned()) << said.back();
    EXPECT_EQ(session.last_peak_bytes(), session.predicted_bytes()) << share;
    EXPECT_LE(session.measured().budget_use, budget) << share;
    EXPECT_TRUE(share < 1 || passes == 1) << "all of it fits";
  }
}

TEST(SessionTest, BatchesOfManyLengthsRunWithinTheBudgetUnderAFewPlans) {
  at::set_num_threads(1);
  const std::uint64_t budget = share_of_plain(0.7);
  Net net(c10::kCPU);
  std::vector<std::string> said;
  Session session(net.weights, {.budget_bytes = budget,
                                .hardware = plan::preset("cpu"),
                                .say = [&](const std::string& text) { said.push_back(text); }});
  std::mt19937 random(5);
  int as_planned = 0;
  for (int step = 0; step < 60; ++step) {
    const std::int64_t length = std::uniform_int_distribution<std::int64_t>(4, 64)(random);
    const at::Tensor batch = at::randn({4, length, kWidth});
    for (const Pass& pass : session.passes(batch))
      (net.loss(pass.of(batch).reshape({-1, kWidth})) * pass.share).backward();
    net.drop_gradients();
    session.end_step();
    as_planned += session.is_as_planned();
  }
  EXPECT_LE(session.measured().budget_use, budget);
  EXPECT_LT(session.plans_made(), 20);
  EXPECT_GE(as_planned, 55) << "all but those from which it learns how large a pass may be";
}

TEST(SessionTest, APlanForOnePassIsNotThatOfAStepWithMoreOfThem) {
  at::set_num_threads(1);
  Net net(c10::kCPU);
  Session session(net.weights, {.budget_bytes = share_of_plain(2.0),
                                .hardware = plan::preset("cpu"),
                                .say = [](const std::string&) {}});
  const auto step = [&](std::int64_t length) {
    const at::Tensor batch = at::randn({8, length, kWidth});
    const std::vector<Pass> passes = session.passes(batch);
    for (const Pass& pass : passes) (net.loss(pass.of(batch).reshape({-1, kWidth})) * pass.share).backward();
    net.drop_gradients();
    session.end_step();
    return passes.size();
  };
  for (int i = 0; i < 5; ++i) step(8);
  EXPECT_EQ(step(8), 1u);
  EXPECT_EQ(step(60), 8u) << "as large as the pass that was planned";
  for (int i = 0; i < 3; ++i) {
    step(60);
    EXPECT_TRUE(session.is_as_planned()) << i;
  }
}

// Layers whose inputs are all that a step which keeps nothing must hold.
class OffloadFromTheStart : public ::testing::TestWithParam<bool> {};

TEST_P(OffloadFromTheStart, WhatFitsOnlyWithItCanStart) {
  const bool prove = GetParam();
  at::set_num_threads(1);
  constexpr std::int64_t kRows = 4096;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 12; ++i) weights.push_back(at::randn({kWidth, kWidth}).mul_(0.1).requires_grad_());
  // A region that is known by its name is not proven again.
  const auto step = [&](Session& session, const std::string& name) {
    at::Tensor x = at::ones({kRows, kWidth});
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region(name + std::to_string(i), [&] { return x + at::gelu(at::mm(x, weights[i])); });
    region("loss", [&] { return x.pow(2).mean(); }).backward();
    std::vector<at::Tensor> gradients;
    for (at::Tensor& weight : weights) {
      gradients.push_back(weight.grad());
      weight.mutable_grad().reset();
    }
    session.end_step();
    return gradients;
  };
  std::uint64_t lean = 0;
  {
    Session session(weights,
                    {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu"), .say = [](const auto&) {}});
    for (int i = 0; i < 2; ++i) step(session, "before");
    lean = session.last_peak_bytes();
  }
  plan::Hardware linked = plan::preset("cpu");
  linked.to_host_rate = linked.to_device_rate = linked.both_ways_rate = 1e10;
  const std::uint64_t budget = lean * 7 / 10;
  Session session(weights,
                  {.budget_bytes = budget, .prove = prove, .hardware = linked, .say = [](const auto&) {}});
  const std::string name = prove ? "proven" : "not proven";
  const auto expected = step(session, name);
  for (int i = 0; i < 5; ++i) {
    const auto gradients = step(session, name);
    for (std::size_t k = 0; k < gradients.size(); ++k) EXPECT_TRUE(at::equal(gradients[k], expected[k]));
  }
  EXPECT_GT(session.measured().host_bytes, 0u);
  EXPECT_LE(session.measured().budget_use, budget);
  EXPECT_LE(session.predicted_bytes(), budget);
}

INSTANTIATE_TEST_SUITE_P(SessionTest, OffloadFromTheStart, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Proven" : "NotProven"; });

TEST(SessionTest, ABudgetThatNoPlanFitsIsMetByKeepingNothing) {
  at::set_num_threads(1);
  std::uint64_t lean = 0;
  {
    SessionTold told(1_GiB);
    for (int i = 0; i < 2; ++i) told.step();
    lean = told.session->last_peak_bytes();
  }
  SessionTold told(lean);
  for (int i = 0; i < 4; ++i) told.step();
  EXPECT_LE(told.session->measured().budget_use, lean);
  ASSERT_EQ(told.said.size(), 1u);
  EXPECT_TRUE(told.session->is_as_planned() || says(told.said[0], "no plan fits `budget`")) << told.said[0];
}

TEST(SessionTest, ABatchWithoutRowsIsRefused) {
  Session session(Net(c10::kCPU).weights, {.budget_bytes = 1_GiB});
  EXPECT_THROW(session.passes(at::empty({0, 4})), Error);
  EXPECT_THROW(session.passes(at::empty({})), Error);
}

TEST(SessionTest, AStepThatThrowsInTheMiddleIsNoStep) {
  at::set_num_threads(1);
  SessionTold told(share_of_plain(0.75));
  const at::Tensor batch = at::randn({256, kWidth});
  for (int i = 0; i < 6; ++i) {
    EXPECT_THROW(region("layer0",
                        [&]() -> at::Tensor {
                          const at::Tensor h = at::gelu(at::mm(batch, told.net.weights[0]));
                          throw std::runtime_error("the user's own");
                          return h;
                        }),
                 std::runtime_error);
    told.step();
  }
  EXPECT_EQ(told.session->plans_made(), 1) << ::testing::PrintToString(told.said);
  EXPECT_TRUE(told.session->is_as_planned());
}

TEST(SessionTest, EndedBetweenForwardAndBackwardItLeavesTheGradientsRight) {
  at::set_num_threads(1);
  Net net(c10::kCPU);
  const at::Tensor batch = at::randn({256, kWidth});
  const auto plain = gradients_of_a_step(net, batch);
  net.drop_gradients();
  at::Tensor loss;
  {
    Session session(net.weights, {.plan = planned(0.6).plan, .prove = false});
    loss = net.loss(batch);
  }
  loss.backward();
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(net.weights[i].grad(), plain[i]));
  loss.reset();
  EXPECT_EQ(tape::live_values(), 0);
}

TEST(SessionTest, LeavesNothingBehind) {
  at::set_num_threads(2);
  const PlannedStep half = [] {
    at::set_num_threads(1);
    return planned(0.6);
  }();
  at::set_num_threads(2);
  Net net(c10::kCPU);
  {
    Session session(net.weights, {.plan = half.plan});
    EXPECT_EQ(at::get_num_threads(), 1);
    net.loss(at::randn({256, kWidth})).backward();
    session.end_step();
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_EQ(tape::live_values(), 0);
  at::empty({static_cast<std::int64_t>(half.plan.budget_bytes)}, at::kByte);  // no limit any more
  at::set_num_threads(1);
}

TEST(SessionTest, ABudgetThatNothingMeetsIsAnAnswer) {
  const PlannedStep least = planned(0.05);
  EXPECT_FALSE(least.decision.fits);
  EXPECT_EQ(least.decision.missing_bytes, least.plan.predicted.peak_bytes - least.plan.budget_bytes);
  EXPECT_FALSE(least.decision.binds.empty());
}

TEST(SessionTest, TuneTakesTheLargestPassesThatFit) {
  const auto rows = [](std::int64_t count) {
    return plan::Setting{.levers = {{plan::kMicroBatch.name, count}}, .accumulation = 256 / count};
  };
  Step step{.settings = {rows(256), rows(64), rows(16)},
            .on_meta = [](const Account&, const plan::Setting& setting) -> std::function<void()> {
              const auto net = std::make_shared<Net>(c10::kMeta);
              return [net, count = setting[plan::kMicroBatch]] {
                net->loss(at::empty({count, kWidth}, c10::kMeta)).backward();
                net->drop_gradients();
              };
            }};
  for (const plan::Setting& setting : step.settings) {
    const std::uint64_t needed = predict(step, setting).least_budget();
    const Tuned tuned = tune(step, needed);
    EXPECT_TRUE(tuned.fits);
    EXPECT_EQ(tuned.setting, setting);
    EXPECT_EQ(tuned.predicted.least_budget(), needed);
    const Tuned smaller = tune(step, needed - 1);
    EXPECT_EQ(smaller.fits, setting != step.settings.back());
    EXPECT_TRUE(!smaller.fits || smaller.setting[plan::kMicroBatch] < setting[plan::kMicroBatch]);
  }
  const std::uint64_t below_plain = predict(step, rows(256)).least_budget() - 1;
  EXPECT_EQ(tune(step, below_plain, {.by_hand = {.recompute = Recompute::Block}}).setting, rows(256));
  step.settings.clear();
  EXPECT_THROW(tune(step, 1_GiB), Error);
}

TEST(SessionTest, APlanWithoutABudgetLimitsNothingAndIsMadeAnew) {
  at::set_num_threads(1);
  plan::Plan plan = planned(0.8).plan;
  plan.budget_bytes = 0;
  SessionTold told(plan);
  for (int i = 0; i < 4; ++i) told.step({.other = true});
  EXPECT_EQ(told.session->plans_made(), 1);
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_TRUE(told.session->plan()->levers.empty()) << "there is room for all of it";
}

TEST(SessionTest, APlanForAnotherStepIsRefusedWithTheFirstDifference) {
  Step step = a_step();
  step.identity = {{"rows", 256}};
  const plan::Plan plan = plan_step(step, {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu")}).plan;
  check_plan(plan, step);
  step.identity["rows"] = 128;
  try {
    check_plan(plan, step);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), "rows 256, here 128")) << error.what();
  }
}

}  // namespace
}  // namespace snug
