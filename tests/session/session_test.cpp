#include "snug/session/session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/capture.h"
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
  Session session(net.weights, half, {.say = [](const std::string& text) { ADD_FAILURE() << text; }});
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
  Session session(net.weights, half);
  EXPECT_THROW(at::empty({static_cast<std::int64_t>(half.plan.budget_bytes)}, at::kByte),
               c10::OutOfMemoryError);
}

TEST(SessionTest, AStructureThatChangesIsSaidAndEverythingIsReMadeFromThen) {
  const PlannedStep roomy = planned(1.0);
  Net net(c10::kCPU);
  std::vector<std::string> said;
  Session session(net.weights, roomy, {.say = [&](const std::string& text) { said.push_back(text); }});
  const at::Tensor batch = at::randn({64, kWidth});
  for (int i = 0; i < 4; ++i) {
    net.loss(batch, /*other=*/i == 1).backward();
    net.drop_gradients();
    session.end_step();
  }
  EXPECT_FALSE(session.is_as_planned());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("layer0"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("all that can be re-made"), std::string::npos) << said[0];
}

TEST(SessionTest, ALargerBatchThanPlannedIsAnErrorThatNamesTheRegion) {
  const PlannedStep roomy = planned(1.0);
  Net net(c10::kCPU);
  Session session(net.weights, roomy);
  try {
    net.loss(at::randn({257, kWidth})).backward();
    ADD_FAILURE() << "ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer0"), std::string::npos) << error.what();
  }
  net.loss(at::randn({200, kWidth})).backward();  // a smaller one is fine
}

TEST(SessionTest, MemoryThatTheSketchDidNotHaveMakesANewPlanForTheRest) {
  at::set_num_threads(1);
  const PlannedStep most = planned(0.9);
  Net net(c10::kCPU);
  int said = 0;
  Session session(net.weights, most, {.lean_at_first = true, .say = [&](const std::string&) { ++said; }});
  EXPECT_LT(session.predicted_bytes(), most.plan.predicted.peak_bytes);
  const std::uint64_t extra = most.plan.budget_bytes / 10;
  const at::Tensor kept_by_the_user = at::empty({static_cast<std::int64_t>(extra)}, at::kByte);
  for (int i = 0; i < 4; ++i) {
    net.loss(at::empty({256, kWidth}).normal_()).backward();
    net.drop_gradients();
    session.end_step();
  }
  EXPECT_TRUE(session.was_planned_again());
  EXPECT_EQ(said, 1);
  EXPECT_LE(session.predicted_bytes(), most.plan.budget_bytes - extra);
  EXPECT_EQ(session.peak_bytes(), session.predicted_bytes() + extra);
  EXPECT_LE(session.peak_bytes(), most.plan.budget_bytes);
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
    Session session(net.weights, half);
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
