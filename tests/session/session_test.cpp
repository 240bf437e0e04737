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
  void step(bool other = false) {
    net.loss(at::empty({256, kWidth}).normal_(), other).backward();
    net.drop_gradients();
    session->end_step();
  }

  Net net;
  std::vector<std::string> said;
  std::optional<Session> session;
};

TEST(SessionTest, AnotherModelThanPlannedIsPlannedAgainFromAStepOfItsOwn) {
  at::set_num_threads(1);
  const PlannedStep most = planned(0.8);
  SessionTold told(most.plan);
  for (int i = 0; i < 4; ++i) told.step(/*other=*/true);
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
  for (int i = 0; i < 6; ++i) told.step(/*other=*/i % 3 == 1);
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

TEST(SessionTest, ALargerBatchThanPlannedIsAnErrorThatNamesTheRegion) {
  const PlannedStep roomy = planned(1.0);
  Net net(c10::kCPU);
  Session session(net.weights, roomy.plan);
  try {
    net.loss(at::randn({257, kWidth})).backward();
    ADD_FAILURE() << "ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer0"), std::string::npos) << error.what();
  }
  net.loss(at::randn({200, kWidth})).backward();  // a smaller one is fine
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
