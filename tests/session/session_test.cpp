#include "snug/session/session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

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

void step_on_meta(memory::Tracker&) {
  Net net(c10::kMeta);
  net.loss(at::empty({256, kWidth}, c10::kMeta)).backward();
  net.drop_gradients();
}

PlannedStep planned(double share) {
  const PlannedStep plain = plan_step(step_on_meta, {.budget_bytes = 1_GiB});
  const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(plain.plan.plain.peak_bytes));
  return plan_step(step_on_meta, {.budget_bytes = budget});
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
  Session session(net.weights, half.plan, {.say = [](const std::string& text) { ADD_FAILURE() << text; }});
  for (int i = 0; i < 3; ++i) {
    const at::Tensor in_account = at::empty({256, kWidth}).copy_(batch);
    const auto lean = gradients_of_a_step(net, in_account);
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(plain[k], lean[k]));
    net.drop_gradients();
    session.end_step();
  }
  EXPECT_EQ(session.peak_bytes(), session.predicted_bytes());
  EXPECT_LE(session.peak_bytes(), half.plan.budget_bytes);
  EXPECT_TRUE(session.is_as_planned());
}

TEST(SessionTest, HoldsTheBudget) {
  const PlannedStep half = planned(0.6);
  Net net(c10::kCPU);
  Session session(net.weights, half.plan);
  EXPECT_THROW(at::empty({static_cast<std::int64_t>(half.plan.budget_bytes)}, at::kByte),
               c10::OutOfMemoryError);
}

// The step of a Net with or without the other operators, and what a session said meanwhile.
class SessionTold {
 public:
  explicit SessionTold(const plan::Plan& plan, SessionOptions options = {}) : net(c10::kCPU) {
    options.say = [this](const std::string& text) { said.push_back(text); };
    session.emplace(net.weights, plan, options);
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
};

TEST(SessionTest, AnotherModelThanPlannedIsPlannedAgainFromAStepOfItsOwn) {
  at::set_num_threads(1);
  const PlannedStep most = planned(0.8);
  SessionTold told(most.plan);
  for (int i = 0; i < 4; ++i) told.step({.other = true});
  EXPECT_TRUE(told.session->was_planned_again());
  EXPECT_TRUE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 2u);
  EXPECT_NE(told.said[0].find("layer0"), std::string::npos) << told.said[0];
  EXPECT_NE(told.said[1].find("planned again"), std::string::npos) << told.said[1];
  EXPECT_EQ(told.session->peak_bytes(), told.session->predicted_bytes());
  EXPECT_LE(told.session->peak_bytes(), most.plan.budget_bytes);
}

TEST(SessionTest, AStructureThatChangesFromStepToStepIsSaidAndEverythingIsReMadeFromThen) {
  const PlannedStep roomy = planned(1.0);
  SessionTold told(roomy.plan);
  for (int i = 0; i < 6; ++i) told.step({.other = i % 3 == 1});
  EXPECT_FALSE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 3u);
  EXPECT_NE(told.said[2].find("all that can be re-made"), std::string::npos) << told.said[2];
}

TEST(SessionTest, APlanForAnotherDeviceOrTorchIsRefused) {
  for (const char* key : {"device", "torch"}) {
    plan::Plan other = planned(1.0).plan;
    other.step[key] = "another";
    EXPECT_THROW(Session(Net(c10::kCPU).weights, other), Error) << key;
  }
}

TEST(SessionTest, AnEvaluationMayBeLargerThanTheStep) {
  const PlannedStep roomy = planned(1.0);
  Net net(c10::kCPU);
  Session session(net.weights, roomy.plan);
  at::NoGradGuard no_grad;
  net.loss(at::randn({300, kWidth}));
}

TEST(SessionTest, ALargerStepThanPlannedRunsIsSaidAndMakesANewPlan) {
  at::set_num_threads(1);
  SessionTold told(planned(1.5).plan);
  told.step();  // proven
  told.step({.rows = 320});
  ASSERT_EQ(told.said.size(), 1u);
  EXPECT_NE(told.said[0].find("layer0"), std::string::npos) << told.said[0];
  EXPECT_NE(told.said[0].find("plan for the largest"), std::string::npos) << told.said[0];
  for (int i = 0; i < 2; ++i) told.step({.rows = 320});
  EXPECT_TRUE(told.session->was_planned_again());
  EXPECT_TRUE(told.session->is_as_planned());
  told.step({.rows = 384});
  EXPECT_FALSE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 3u);
  EXPECT_NE(told.said[2].find("all that can be re-made"), std::string::npos) << told.said[2];
  told.step({.rows = 448});
}

TEST(SessionTest, ASmallerStepThanPlannedDoesNotTakeThePlanFromALargerOne) {
  at::set_num_threads(1);
  const plan::Plan given = planned(0.6).plan;
  SessionTold told(given, {.lean_at_first = true});
  for (const std::int64_t rows : {256, 128, 256, 192, 256}) told.step({.rows = rows});
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_FALSE(told.session->was_planned_again());
  EXPECT_EQ(told.session->plan(), given);
  EXPECT_EQ(told.session->peak_bytes(), given.predicted.peak_bytes);
  ASSERT_EQ(told.said.size(), 1u);
  EXPECT_NE(told.said[0].find("the plan stays"), std::string::npos) << told.said[0];
}

TEST(SessionTest, ANewPlanIsForTheLargestPassOfItsStep) {
  SessionTold told({.budget_bytes = 1_GiB}, {.lean_at_first = true});
  for (int i = 0; i < 4; ++i) {
    for (const std::int64_t rows : {128, 256}) told.pass({.rows = rows});
    told.end_step();
  }
  EXPECT_TRUE(told.session->is_as_planned());
  EXPECT_EQ(told.said.size(), 1u);
  for (const plan::RegionPlan& region : told.session->plan().regions)
    if (region.region == "layer0") {
      EXPECT_GE(region.bytes, 256u * kWidth * sizeof(float) * 5);
    }
}

TEST(SessionTest, MoreMemoryThanANewPlanPredictsIsSaidAndEverythingIsReMadeFromThen) {
  at::set_num_threads(1);
  SessionTold told(planned(1.5).plan, {.lean_at_first = true});
  for (int i = 0; i < 4; ++i) told.step();
  EXPECT_TRUE(told.session->is_as_planned());
  for (int i = 0; i < 3; ++i) told.pass();  // from the second on there are gradients
  told.end_step();
  EXPECT_GT(told.session->peak_bytes(), told.session->predicted_bytes());
  EXPECT_FALSE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 2u);
  EXPECT_NE(told.said[1].find("were predicted"), std::string::npos) << told.said[1];
  EXPECT_NE(told.said[1].find("all that can be re-made"), std::string::npos) << told.said[1];
}

TEST(SessionTest, AnOutputThatIsHeldAndNeverAskedForIsNoPartOfThePlan) {
  SessionTold told(planned(1.5).plan, {.lean_at_first = true});
  at::Tensor logged;
  for (int i = 0; i < 4; ++i) {
    logged = region("auxiliary", [&] { return at::tanh(told.net.weights[0]).sum(); });
    told.step();
  }
  EXPECT_TRUE(told.session->was_planned_again());
  EXPECT_TRUE(told.session->is_as_planned());
}

TEST(SessionTest, AGraphThatIsHeldInTheSketchedStepMakesTheNextOneBeSketched) {
  at::set_num_threads(1);
  SessionTold told(planned(1.5).plan, {.lean_at_first = true});
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
  EXPECT_TRUE(told.session->was_planned_again());
  EXPECT_TRUE(told.session->is_as_planned()) << told.said.back();
}

TEST(SessionTest, ALoopWhoseGraphsAlwaysStayIsLeanAfterAFewTries) {
  SessionTold told(planned(1.5).plan, {.lean_at_first = true});
  at::Tensor held;
  for (int i = 0; i < 8; ++i) {
    held = told.net.loss(at::empty({256, kWidth}).normal_());
    held.backward({}, /*retain_graph=*/true);
    told.end_step();
  }
  EXPECT_FALSE(told.session->is_as_planned());
  ASSERT_EQ(told.said.size(), 4u);
  EXPECT_NE(told.said[3].find("all that can be re-made"), std::string::npos) << told.said[3];
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
  EXPECT_EQ(told.session->peak_bytes(), told.session->predicted_bytes());
}

TEST(SessionTest, WhatIsOlderThanTheSessionCountsIfItIsAdopted) {
  const at::Tensor state = at::empty({1 << 20}, at::kByte);
  Net net(c10::kCPU);
  Session session(net.weights, planned(1.5).plan, {.adopt = {state}});
  session.end_step();
  EXPECT_EQ(session.peak_bytes(), 4 * kWidth * kWidth * sizeof(float) + (1 << 20));
}

TEST(SessionTest, MemoryThatTheSketchDidNotHaveMakesANewPlan) {
  at::set_num_threads(1);
  for (const bool lean_at_first : {false, true}) {
    plan::Plan plan = planned(0.75).plan;
    const std::uint64_t extra = plan.budget_bytes / 10;
    if (!lean_at_first) plan.budget_bytes += extra / 2;  // room for a step that is not what was planned
    const std::uint64_t budget = plan.budget_bytes;
    SessionTold told(plan, {.lean_at_first = lean_at_first});
    const at::Tensor held_by_the_user = at::empty({static_cast<std::int64_t>(extra / 2)}, at::kByte);
    for (int i = 0; i < 5; ++i) told.step();
    EXPECT_TRUE(told.session->was_planned_again());
    EXPECT_EQ(told.said.size(), lean_at_first ? 1u : 2u);
    EXPECT_LE(told.session->predicted_bytes(), budget);
    if (lean_at_first) {
      EXPECT_EQ(told.session->peak_bytes(), told.session->predicted_bytes());
    }
    EXPECT_LE(told.session->peak_bytes(), budget);
  }
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
    Session session(net.weights, half.plan);
    EXPECT_EQ(at::get_num_threads(), 1);
    net.loss(at::randn({256, kWidth})).backward();
    session.end_step();
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_EQ(tape::live_values(), 0);
  at::empty({static_cast<std::int64_t>(half.plan.budget_bytes)}, at::kByte);  // no limit any more
  at::set_num_threads(1);
}

TEST(SessionTest, ABudgetThatNothingMeetsSaysWhatIsMissing) {
  try {
    planned(0.05);
    ADD_FAILURE() << "was planned";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("more"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace snug
