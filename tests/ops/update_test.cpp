#include "snug/ops/update.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <random>
#include <thread>

#include "snug/base/error.h"
#include "snug/ops/split_float.h"
#include "tests/ops/update_cases.h"
#include "tests/support/temporary_folder.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

float bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

TEST(SplitFloatTest, IsTheNumberBitForBit) {
  std::mt19937 random(5);
  const auto expect_exact = [](std::uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    const SplitFloat split = SplitFloat::of(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(split.joined()));
      EXPECT_TRUE(std::isnan(bf16(split.nearest))) << "a NaN must be seen in the weight";
      return;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(split.joined()), bits);
  };
  for (int i = 0; i < 200000; ++i) expect_exact(static_cast<std::uint32_t>(random()));
  for (const std::uint32_t bits : {0u, 0x80000000u, 1u, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
                                   0x7fffffffu, 0xffffffffu, 0x3f808000u, 0x3f818000u, 0x3f807fffu})
    expect_exact(bits);
}

TEST(SplitFloatTest, TheWeightIsTheNearestBfloat) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 100000; ++i) {
    const float value = normal(random), nearest = bf16(SplitFloat::of(value).nearest);
    const float torchs = static_cast<float>(static_cast<c10::BFloat16>(value));
    ASSERT_EQ(std::abs(nearest - value), std::abs(torchs - value)) << value;
  }
}

TEST(UpdateStep, ASplitMasterIsTheMasterBitForBit) {
  expect_split_is_the_master_bit_for_bit(c10::kCPU);
}

TEST(UpdateStep, IsTorchs) {
  expect_torchs_step(c10::kCPU, 1e-5);  // whose CPU kernel rounds in another order, 20 times
}

TEST(UpdateStep, ASkippedStepWritesNothing) {
  expect_a_skipped_step_writes_nothing(c10::kCPU);
}

TEST(UpdateStep, AMixedListIsItsParametersOneByOne) {
  expect_a_mixed_list_is_its_parameters_one_by_one(c10::kCPU);
}

TEST(UpdateStep, MisalignedViewsTakeTheSameStep) {
  expect_misaligned_views_take_the_same_step(c10::kCPU);
}

TEST(UpdateStep, HalfFollowsItsMaster) {
  expect_half_follows_its_master(c10::kCPU);
}

TEST(UpdateStep, AFactorMultipliesGradients) {
  expect_a_factor_multiplies_gradients(c10::kCPU);
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

// OpenMP's threads stay with the one that they worked for.
TEST(UpdateStep, UsesEveryThreadWhoeverCalls) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const at::Tensor weight = at::zeros({1'000'000}), gradient = at::zeros_like(weight);
  std::thread([&] {
    const std::ptrdiff_t without = threads_of_this_process();
    sgd_({{{weight}, {gradient}, {weight}}}, {});
    EXPECT_EQ(threads_of_this_process(), without + 2);
  }).join();
  at::set_num_threads(before);
}

TEST(UpdateStep, RefusesWhatDoesNotBelongTogether) {
  const auto refusal = [](const auto& spoil, const UpdateControl& control = {}) {
    AdamWTensors tensors = half_parameters(Master::Split, at::kBFloat16, c10::kCPU);
    spoil(tensors);
    return message_of<Error>([&] { adamw_(tensors, kNumbers, control); });
  };
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.gradients.pop_back(); }),
            "adamw_: lists of 5 and 4 tensors");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.gradients[1] = at::zeros({8}, at::kBFloat16); }),
            "adamw_: parameter 1 is [7] on cpu; expected contiguous tensors like it, got [8] on cpu");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.gradients[1] = at::zeros({7}, at::kHalf); }),
            "adamw_: the gradient of parameter 1, which is BFloat16, is Half");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.masters[1] = at::zeros({7}, at::kInt); }),
            "adamw_: parameter 1 is BFloat16 and needs a master in float32 or a remainder in int16, got Int");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.exp_avgs[1] = at::zeros({7}, at::kBFloat16); }),
            "adamw_: parameter 1 is [7] on cpu; expected contiguous states like it in float32, got [7] "
            "BFloat16 on cpu");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { tensors.steps[1] = at::zeros({3}); }),
            "adamw_: a step must be one float32 number on cpu, got [3] Float on cpu");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) {
              tensors.weights[1] = at::zeros({7});
              tensors.gradients[1] = at::zeros({7});
            }),
            "adamw_: parameter 1 is Float and is its own master, got another, Short");
  EXPECT_EQ(refusal([](AdamWTensors&) {}, {.arithmetic = Arithmetic::Cuda}),
            "adamw_: a step must be its two adamw_corrections on cpu, got [] Float on cpu");
  EXPECT_EQ(refusal([](AdamWTensors&) {}, {.factor = at::zeros({2})}),
            "adamw_: factor and skip must be one float32 number on the device of the parameters");
  EXPECT_EQ(refusal([](AdamWTensors& tensors) { move_parameter(tensors, 1, c10::kMeta); }),
            "adamw_: parameter 1 is on meta, parameter 0 on cpu; expected one device");
}

TEST(AdamWCorrections, AreTwoForEveryStep) {
  const at::Tensor corrections = adamw_corrections(at::arange(1, 7).to(at::kFloat).view({2, 3}), kNumbers);
  ASSERT_EQ(corrections.sizes(), at::IntArrayRef({2, 3, 2}));
  EXPECT_EQ(corrections[1][0][0].item<float>(), static_cast<float>(1 - std::pow(double{0.9f}, 4)));
  EXPECT_EQ(corrections[1][0][1].item<float>(),
            static_cast<float>(std::sqrt(1 - std::pow(double{0.999f}, 4))));
  EXPECT_EQ(adamw_corrections(at::zeros({}, at::kMeta), kNumbers).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(message_of<Error>([] { adamw_corrections(at::zeros({}, at::kLong), kNumbers); }),
            "adamw_corrections: steps must be float32, got Long");
}

}  // namespace
}  // namespace snug::ops
