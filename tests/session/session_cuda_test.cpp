// A session on a GPU whose operators are not those of the sketch: torch fuses rms_norm there and nowhere
// else.
#include "snug/session/session.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/machine/hardware_of.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/planner.h"
#include "snug/session/plan_step.h"
#include "snug/tape/region.h"

namespace snug {
namespace {

constexpr std::int64_t kWidth = 1024, kRows = 65536, kLayers = 4;

struct Net {
  std::vector<at::Tensor> weights;
  at::Tensor scale;

  bool is_fused;  // rms_norm: one operator on a GPU, several on Meta

  explicit Net(c10::Device device, bool is_fused = true) : is_fused(is_fused) {
    at::manual_seed(3);
    const auto options = at::TensorOptions(device);
    scale = at::ones({kWidth}, options);
    for (std::int64_t i = 0; i < kLayers; ++i)
      weights.push_back(at::randn({kWidth, kWidth}, options).mul_(0.03).requires_grad_());
  }
  void step(at::Tensor x) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      x = region("layer" + std::to_string(i), [&] { return at::gelu(at::mm(norm(x), weights[i])) + x; });
    region("loss", [&] { return x.pow(2).mean(); }).backward();
  }
  at::Tensor norm(const at::Tensor& x) {
    return is_fused ? at::rms_norm(x, {kWidth}, scale, 1e-5) : at::tanh(x);
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

Step a_step() {
  return {.device = c10::kCUDA, .on_meta = [](const Account&, const plan::Setting&) -> std::function<void()> {
            const auto net = std::make_shared<Net>(c10::kMeta, /*is_fused=*/false);
            return [net] {
              net->step(at::empty({kRows, kWidth}, c10::kMeta));
              net->take_gradients();
            };
          }};
}

// What the process holds when everything is loaded.
std::uint64_t outside_bytes() {
  Net net(c10::kCUDA);
  net.step(at::randn({kRows, kWidth}, c10::kCUDA));
  memory::empty_cuda_cache();
  return memory::process_memory(c10::kCUDA).outside_bytes();
}

TEST(SessionCuda, ABudgetAloneIsHeldAndPredicted) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  Net net(c10::kCUDA);
  const std::uint64_t outside = outside_bytes();
  const at::Tensor batch = at::randn({kRows, kWidth}, c10::kCUDA);
  net.step(batch.clone());
  const auto expected = net.take_gradients();
  const std::uint64_t plain = [&] {
    Session session(net.weights, {.device = c10::kCUDA});
    net.step(batch.clone());
    net.take_gradients();
    session.end_step();
    return session.measured().peak.total;
  }();
  memory::empty_cuda_cache();
  // Before anything is measured the session leaves more for context and libraries than they take here.
  const std::uint64_t budget = outside + plain * 8 / 10 + 512_MiB;
  std::vector<std::string> said;
  Session session(net.weights, {.device = c10::kCUDA,
                                .budget_bytes = budget,
                                .say = [&](const std::string& text) { said.push_back(text); }});
  for (int i = 0; i < 8; ++i) {
    net.step(batch.clone());
    const auto gradients = net.take_gradients();
    for (std::size_t k = 0; k < gradients.size(); ++k)
      EXPECT_TRUE(at::allclose(gradients[k], expected[k], 1e-4, 1e-9)) << i;
    session.end_step();
  }
  EXPECT_GE(session.plans_made(), 1);
  EXPECT_TRUE(session.is_as_planned());
  ASSERT_GE(said.size(), 1u);
  EXPECT_LE(session.predicted_bytes(), budget);
  EXPECT_LE(session.measured().budget_use, budget);
  EXPECT_NEAR(
      static_cast<double>(session.measured().budget_use) / static_cast<double>(session.predicted_bytes()), 1,
      0.01)
      << said[0];
}

TEST(SessionCuda, APlanThatWasGivenIsUsedFromTheFirstStep) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  plan::Hardware hardware = machine::hardware_of(c10::kCUDA);
  hardware.outside_bytes = outside_bytes();
  const auto planned = [&](std::uint64_t budget) {
    return plan_step(a_step(), {.budget_bytes = budget, .hardware = hardware}).plan;
  };
  const plan::Plan plain = planned(hardware.memory_bytes);
  const std::uint64_t held_beside = 4 * kRows * kWidth * 2;  // by this test: a batch, gradients
  const plan::Plan given = planned(hardware.outside_bytes +
                                   (plain.plain.peak_bytes - hardware.outside_bytes) * 7 / 10 + held_beside);
  Net net(c10::kCUDA, /*is_fused=*/false);
  Session session(net.weights,
                  {.device = c10::kCUDA, .plan = given, .prove = false, .say = [](const std::string& text) {
                     ADD_FAILURE() << text;
                   }});
  for (int i = 0; i < 4; ++i) {
    net.step(at::randn({kRows, kWidth}, c10::kCUDA));
    net.take_gradients();
    session.end_step();
    EXPECT_TRUE(session.is_as_planned()) << i;
  }
  EXPECT_EQ(*session.plan(), given);
  std::uint64_t dropped = 0;
  for (const auto& [region, totals] : session.measured().recomputed)
    dropped += totals.dropped_bytes + totals.offloaded_bytes;
  EXPECT_GT(dropped, 0u);
}

TEST(SessionCuda, ASecondOneIsRefusedAndLeavesTheFirstOnesCap) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  Net net(c10::kCUDA);
  const plan::Plan plan{.budget_bytes = 4_GiB};
  const auto take = [] {
    at::empty({static_cast<std::int64_t>(4_GiB)}, at::TensorOptions(c10::kCUDA).dtype(at::kByte));
  };
  {
    const Session first(net.weights, {.device = c10::kCUDA, .plan = plan});
    EXPECT_THROW(Session(net.weights, {.device = c10::kCUDA, .plan = plan}), Error);
    EXPECT_THROW(take(), c10::OutOfMemoryError);
  }
  EXPECT_NO_THROW(take()) << "when the session ends, everything is as it was";
}

TEST(SessionCuda, AStepThatIsLargerThanTheSketchedOneRunsAndIsPlannedToo) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  Net net(c10::kCUDA);
  std::vector<std::string> said;
  Session session(net.weights, {.device = c10::kCUDA,
                                .budget_bytes = machine::memory_bytes(c10::kCUDA) / 2,
                                .say = [&](const std::string& text) { said.push_back(text); }});
  for (const std::int64_t rows : {kRows, kRows / 2, kRows, kRows, kRows}) {
    net.step(at::randn({rows, kWidth}, c10::kCUDA));
    net.take_gradients();
    session.end_step();
  }
  EXPECT_GE(session.plans_made(), 2);
  EXPECT_TRUE(session.is_as_planned());
  ASSERT_GE(said.size(), 3u);
  EXPECT_NE(said[1].find("layer0"), std::string::npos) << said[1];
}

TEST(SessionCuda, ParkedStatesAreOnTheHostBetweenStepsAndTheBitsStay) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  constexpr std::uint64_t kStates = 2 * kLayers * kWidth * kWidth * sizeof(float);
  struct Trained {
    std::vector<at::Tensor> weights;
    std::uint64_t between_steps;
  };
  const auto train = [&](bool parks) -> Trained {
    Net net(c10::kCUDA);
    torch::optim::AdamW optimizer(net.weights, torch::optim::AdamWOptions(1e-3));
    Session session(net.weights, {.device = c10::kCUDA,
                                  .budget_bytes = machine::memory_bytes(c10::kCUDA) / 2,
                                  .say = [](const std::string&) {}});
    std::uint64_t between_steps = 0;
    for (int i = 0; i < 10; ++i) {
      at::manual_seed(i);
      net.step(at::randn({64, kWidth}, c10::kCUDA));
      parks ? session.step(optimizer) : static_cast<void>(optimizer.step());
      optimizer.zero_grad();
      session.end_step();
      between_steps = memory::process_memory(c10::kCUDA).allocated_bytes;
    }
    EXPECT_EQ(session.measured().host_bytes >= kStates, parks);
    EXPECT_TRUE(session.is_as_planned());
    return {net.weights, between_steps};
  };
  const Trained plain = train(false), parked = train(true);
  for (std::size_t k = 0; k < plain.weights.size(); ++k)
    EXPECT_TRUE(at::equal(plain.weights[k], parked.weights[k])) << k;
  // The first net is still there while the second is trained.
  const std::uint64_t first_net = kLayers * kWidth * kWidth * sizeof(float);
  EXPECT_NEAR(static_cast<double>(plain.between_steps + first_net - parked.between_steps),
              static_cast<double>(kStates), static_cast<double>(1_MiB));
}

// A state that has no memory here has none to be saved either: no file may be written with less.
TEST(SessionCuda, ParkedStatesAreSavedFromWhereTheyAreUnparked) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: a session on CUDA was not tested";
  Net net(c10::kCUDA);
  torch::optim::AdamW optimizer(net.weights);
  Session session(net.weights, {.device = c10::kCUDA, .say = [](const std::string&) {}});
  net.step(at::randn({64, kWidth}, c10::kCUDA));
  session.step(optimizer);
  std::stringstream file;
  EXPECT_ANY_THROW(torch::save(optimizer, file));
  session.unpark(optimizer);
  std::stringstream on_device, on_host;
  torch::save(optimizer, on_device);
  session.unpark(optimizer, ReadStates::OnHost);
  EXPECT_TRUE(AnyOptimizer(optimizer).states(net.weights[0])[0].tensor.is_cpu());
  torch::save(optimizer, on_host);
  torch::optim::AdamW first(net.weights), second(net.weights);
  torch::load(first, on_device);
  torch::load(second, on_host, c10::Device(c10::kCUDA, 0));
  for (const at::Tensor& weight : net.weights)
    EXPECT_TRUE(at::equal(AnyOptimizer(first).states(weight)[0].tensor,
                          AnyOptimizer(second).states(weight)[0].tensor));
  session.step(optimizer);  // the gradients are still there
  session.unpark(optimizer);
  EXPECT_TRUE(AnyOptimizer(optimizer).states(net.weights[0])[0].tensor.is_cuda());
}

}  // namespace
}  // namespace snug
