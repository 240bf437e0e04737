// A session on a GPU whose operators are not those of the sketch: torch fuses rms_norm there and nowhere
// else.
#include "snug/session/session.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/plan/planner.h"
#include "snug/session/hardware_of.h"
#include "snug/session/plan_step.h"
#include "snug/tape/region.h"

namespace snug {
namespace {

constexpr std::int64_t kWidth = 1024, kRows = 16384, kLayers = 4;

struct Net {
  std::vector<at::Tensor> weights;
  at::Tensor scale;

  explicit Net(c10::Device device) {
    at::manual_seed(3);
    const auto options = at::TensorOptions(device);
    scale = at::ones({kWidth}, options);
    for (std::int64_t i = 0; i < kLayers; ++i)
      weights.push_back(at::randn({kWidth, kWidth}, options).mul_(0.03).requires_grad_());
  }
  void step(at::Tensor x) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region("layer" + std::to_string(i),
                 [&] { return at::gelu(at::mm(at::rms_norm(x, {kWidth}, scale, 1e-5), weights[i])) + x; });
    region("loss", [&] { return x.pow(2).mean(); }).backward();
  }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& weight : weights) {
      gradients.push_back(weight.grad());
      weight.mutable_grad().reset();
    }
    return gradients;
  }
};

TEST(SessionCuda, PlansAgainFromTheOperatorsThatThisDeviceHas) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  const plan::Hardware hardware = session::hardware_of(c10::kCUDA);
  const auto on_meta = [](memory::Tracker&) {
    Net net(c10::kMeta);
    net.step(at::empty({kRows, kWidth}, c10::kMeta));
    net.take_gradients();
  };
  const auto planned = [&](std::uint64_t budget) {
    return plan_step(on_meta, {.budget_bytes = budget, .hardware = hardware}).plan;
  };
  const plan::Plan plain = planned(hardware.memory_bytes);
  const std::uint64_t tensors = plain.plain.peak_bytes - hardware.outside_bytes;
  const std::uint64_t held_beside = 4 * kRows * kWidth * 2;  // by this test: a batch, gradients
  const plan::Plan lean = planned(hardware.outside_bytes + tensors * 7 / 10 + held_beside);

  Net net(c10::kCUDA);
  const at::Tensor batch = at::randn({kRows, kWidth}, c10::kCUDA);
  net.step(batch.clone());
  const auto expected = net.take_gradients();
  std::vector<std::string> said;
  Session session(net.weights, lean,
                  {.device = c10::kCUDA, .say = [&](const std::string& text) { said.push_back(text); }});
  for (int i = 0; i < 5; ++i) {
    net.step(batch.clone());
    const auto gradients = net.take_gradients();
    for (std::size_t k = 0; k < gradients.size(); ++k)
      EXPECT_TRUE(at::allclose(gradients[k], expected[k], 1e-4, 1e-9)) << i;
    session.end_step();
  }
  EXPECT_TRUE(session.was_planned_again());
  EXPECT_TRUE(session.is_as_planned());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_LE(session.predicted_bytes(), lean.budget_bytes);
  const auto with_overhead = static_cast<double>(plan::overhead_of(hardware).on_top_of(session.peak_bytes()));
  EXPECT_NEAR(with_overhead / static_cast<double>(session.predicted_bytes()), 1, 0.01) << said[0];
}

TEST(SessionCuda, ASecondOneIsRefusedAndLeavesTheFirstOnesCap) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  Net net(c10::kCUDA);
  const plan::Plan plan{.budget_bytes = 4_GiB, .micro_batch = 1};
  const auto take = [] {
    at::empty({static_cast<std::int64_t>(4_GiB)}, at::TensorOptions(c10::kCUDA).dtype(at::kByte));
  };
  {
    const Session first(net.weights, plan, {.device = c10::kCUDA});
    EXPECT_THROW(Session(net.weights, plan, {.device = c10::kCUDA}), Error);
    EXPECT_THROW(take(), c10::OutOfMemoryError);
  }
  EXPECT_NO_THROW(take()) << "when the session ends, everything is as it was";
}

// The plan given is for other operators, so the new one knows no larger step than the sketched one.
TEST(SessionCuda, AStepThatIsLargerThanTheSketchedOneRunsAndIsSaid) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  const plan::Hardware hardware = session::hardware_of(c10::kCUDA);
  Net net(c10::kCUDA);
  std::vector<std::string> said;
  Session session(net.weights, {.budget_bytes = hardware.memory_bytes / 2},
                  {.device = c10::kCUDA, .say = [&](const std::string& text) { said.push_back(text); }});
  for (const std::int64_t rows : {kRows, kRows / 2, kRows, kRows}) {
    net.step(at::randn({rows, kWidth}, c10::kCUDA));
    net.take_gradients();
    session.end_step();
  }
  EXPECT_TRUE(session.was_planned_again());
  EXPECT_FALSE(session.is_as_planned());
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[1].find("layer0"), std::string::npos) << said[1];
}

}  // namespace
}  // namespace snug
