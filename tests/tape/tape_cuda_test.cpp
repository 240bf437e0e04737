// The tape on a real GPU, in deterministic mode. Skips loudly where there is none.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cstdlib>

#include "snug/base/error.h"
#include "snug/tape/region.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);
constexpr int kAssignments = 70;

class TapeOnGpu : public testing::TestWithParam<std::tuple<int, Numbers>> {
 protected:
  static void SetUpTestSuite() {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setBenchmarkCuDNN(false);
  }
  static void TearDownTestSuite() { at::globalContext().setDeterministicAlgorithms(false, false); }
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  }
  static Problem problem() {
    return std::move(
        all_problems(std::get<1>(GetParam()), kGpu).at(static_cast<std::size_t>(std::get<0>(GetParam()))));
  }
};

TEST_P(TapeOnGpu, RandomFatesHaveTheBitsOfPlainAutograd) {
  Problem model = problem();
  const auto plain = step(model);
  ASSERT_TRUE(same_bits(plain, step(model))) << "plain autograd does not repeat itself";
  const auto keep_left = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0].current;
  };
  std::int64_t before = 0;
  std::uint64_t replays = 0, offloaded = 0;
  for (int seed = 0; seed < kAssignments; ++seed) {
    Recording recording(seed == 0   ? Fates::recompute()
                        : seed == 1 ? Fates::cheap()
                                    : dice(static_cast<std::uint64_t>(seed)));
    ASSERT_TRUE(same_bits(plain, step(model))) << model.name << ", seed " << seed;
    for (const auto& [region, totals] : recording.totals()) {
      replays += totals.replays;
      offloaded += totals.offloaded_values;
    }
    if (seed == 10) before = keep_left();  // libraries have what they keep
  }
  EXPECT_GT(replays, kAssignments / 4u);
  EXPECT_GT(offloaded, kAssignments / 2u);
  EXPECT_EQ(live_values(), 0);
  EXPECT_EQ(keep_left(), before);
}

TEST_P(TapeOnGpu, VerifyFindsNoDifference) {
  Problem model = problem();
  Recording recording(Fates::recompute(), {.verify = true, .time_replays = true});
  step(model);
  std::uint64_t checked = 0;
  for (const auto& [region, totals] : recording.totals()) {
    checked += totals.checked;
    EXPECT_EQ(totals.differing, 0u) << region;
    if (totals.replays > 0) {
      EXPECT_GT(totals.replay_seconds, 0) << region;
    }
  }
  EXPECT_GT(checked, 5u);
}

std::string test_name(const testing::TestParamInfo<std::tuple<int, Numbers>>& info) {
  constexpr const char* kNames[] = {"Llama", "Gpt", "Convolutions", "Lstm", "SharedWeights"};
  return std::string(kNames[std::get<0>(info.param)]) + name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Models, TapeOnGpu,
                         testing::Combine(testing::Range(0, 5),
                                          testing::Values(Numbers::Fp32, Numbers::Bf16, Numbers::Autocast)),
                         test_name);

TEST(TapeOnGpuAlone, ARegionUnderGraphCaptureIsRefusedByName) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  at::Tensor x = at::ones({4}, kGpu).requires_grad_();
  c10::cuda::CUDAStreamGuard on_a_stream(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  Recording recording(Fates::recompute());
  std::string message;
  graph.capture_begin();
  try {
    region("captured", [&] { return x * 2; });
  } catch (const Error& error) {
    message = error.what();
  }
  at::Tensor y = x.detach() * 2;
  graph.capture_end();
  EXPECT_NE(message.find("captured"), std::string::npos) << message;
  EXPECT_NE(message.find("CUDA graph"), std::string::npos) << message;
  EXPECT_EQ(hooks::current_region(), 0u);
}

// Captured once and launched again, on what is there by then.
TEST(TapeOnGpuAlone, ARegionUnderGraphCaptureIsRecomputedByEveryLaunch) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  const at::Tensor x = at::rand({1 << 10}, kGpu), weight = at::rand({1 << 10}, kGpu).requires_grad_();
  const auto gradient = [&] {
    const at::Tensor y = region("captured", [&] { return (x * weight).tanh().sin().exp(); });
    return torch::autograd::grad({y.sum()}, {weight})[0];
  };
  Recording recording(Fates::recompute(), {.prove = false});
  gradient();  // loads its kernels
  c10::cuda::device_synchronize();
  at::cuda::CUDAGraph graph;
  at::Tensor captured;
  {
    c10::cuda::CUDAStreamGuard on_a_stream(c10::cuda::getStreamFromPool());
    graph.capture_begin();
    captured = gradient();
    graph.capture_end();
  }
  EXPECT_GT(recording.totals().at("captured").replays, 2u);
  for (int i = 0; i < 3; ++i) {
    x.uniform_();
    graph.replay();
    EXPECT_TRUE(at::equal(captured, gradient()));
  }
}

TEST(TapeOnGpuAlone, ARegionUnderGraphCaptureIsNotOffloaded) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  const at::Tensor x = at::rand({1 << 20}, kGpu).requires_grad_();
  Recording recording(Fates::offload(), {.prove = false});
  c10::cuda::CUDAStreamGuard on_a_stream(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  std::string message;
  graph.capture_begin();
  try {
    region("captured", [&] { return x.tanh().sin(); });
  } catch (const std::exception& error) {
    message = error.what();
  }
  at::Tensor y = x.detach() * 2;
  graph.capture_end();
  EXPECT_NE(message.find("\"captured\" cannot be offloaded while a CUDA graph is captured"),
            std::string::npos)
      << message;
}

// One value, saved by operators on two streams, recomputed for the one whose backward comes first: behind a
// long chain, so that whoever does not wait reads what is not there yet.
TEST(TapeOnGpuAlone, AValueRecomputedOnOneStreamIsWaitedForOnAnother) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  const at::Tensor x = at::rand({1 << 24}, c10::TensorOptions(kGpu)).requires_grad_();
  c10::cuda::device_synchronize();  // both streams read it
  const auto first = c10::cuda::getStreamFromPool(), second = c10::cuda::getStreamFromPool();
  const auto gradient = [&] {
    const auto sums = region("two streams", [&] {
      c10::cuda::CUDAStreamGuard guard(first);
      at::Tensor shared = x;
      for (int k = 0; k < 60; ++k) shared = shared.tanh();
      at::Tensor on_first = shared.sin().sum();
      first.synchronize();
      guard.reset_stream(second);
      at::Tensor on_second = shared.cos().sum();
      second.synchronize();
      return std::pair(on_first, on_second);
    });
    x.mutable_grad() = at::Tensor();
    (sums.first + sums.second).backward();
    c10::cuda::device_synchronize();
    return x.grad().clone();
  };
  const at::Tensor plain = gradient();
  for (int repetition = 0; repetition < 20; ++repetition) {
    Recording recording(Fates::recompute());
    ASSERT_TRUE(same_bits(plain, gradient())) << "repetition " << repetition;
  }
  EXPECT_EQ(live_values(), 0);
}

TEST(TapeOnGpuAlone, ACopyThatNobodyWaitsForIsKeptAndNamed) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the tape was not tested on CUDA";
  const at::Tensor x = at::rand({1 << 20}, c10::TensorOptions(kGpu)).requires_grad_();
  Recording recording(Fates::recompute());
  region("to the host", [&] {
    at::Tensor copy = x.sin().to(c10::kCPU, /*non_blocking=*/true);
    c10::cuda::device_synchronize();
    return copy.exp().sum();
  }).backward();
  EXPECT_TRUE(same_bits(x.grad(), x.detach().sin().cpu().exp().to(kGpu) * x.detach().cos()));
  const auto totals = recording.totals();
  bool named = false;
  for (const auto& [why, some] : totals.at("to the host").refused)
    named |= why.second.find("does not wait") != std::string::npos;
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace snug::tape
