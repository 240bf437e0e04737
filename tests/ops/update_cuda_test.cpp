#include <torch/cuda.h>

#include <cmath>
#include <optional>

#include "snug/base/error.h"
#include "tests/ops/update_layouts.h"
#include "tests/support/temporary_folder.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

class UpdateCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: optimizer steps on CUDA were not tested";
  }
};

TEST_F(UpdateCuda, ASplitMasterIsTheMasterBitForBit) {
  expect_split_is_the_master_bit_for_bit(c10::kCUDA);
}

TEST_F(UpdateCuda, IsTorchsFusedStepBitForBit) {
  expect_torchs_step(c10::kCUDA, /*tolerance=*/0);
}

TEST_F(UpdateCuda, ASkippedStepWritesNothing) {
  expect_a_skipped_step_writes_nothing(c10::kCUDA);
}

TEST_F(UpdateCuda, AMixedListIsItsParametersOneByOne) {
  expect_a_mixed_list_is_its_parameters_one_by_one(c10::kCUDA);
}

TEST_F(UpdateCuda, MisalignedViewsTakeTheSameStep) {
  expect_misaligned_views_take_the_same_step(c10::kCUDA);
}

TEST_F(UpdateCuda, HalfFollowsItsMaster) {
  expect_half_follows_its_master(c10::kCUDA);
}

TEST_F(UpdateCuda, AFactorMultipliesGradients) {
  expect_a_factor_multiplies_gradients(c10::kCUDA);
}

TEST_F(UpdateCuda, MoreTensorsThanALaunchHolds) {
  AdamWTensors many;
  for (int i = 0; i < 30; ++i) append(many, half_parameters(Master::Split, at::kBFloat16, c10::kCUDA));
  for (at::Tensor& gradient : many.gradients) gradient.fill_(1);
  for (at::Tensor& step : many.steps) step.add_(1);
  adamw_(many, kNumbers);
  for (std::size_t i = 5; i < many.weights.size(); ++i)
    ASSERT_TRUE(at::equal(many.weights[i], many.weights[i % 5])) << i;
  EXPECT_FALSE(
      at::equal(many.weights[4], half_parameters(Master::Split, at::kBFloat16, c10::kCUDA).weights[4]));
}

// What the CPU makes of a copy, in the arithmetic of CUDA, is what the GPU makes.
class CpuForCuda : public UpdateCuda {
 protected:
  const std::vector<std::int64_t> sizes_{1, 7, 64, 1021, 20011};

  static void renew_gradients(const AdamWTensors& there, const AdamWTensors& here) {
    for (std::size_t i = 0; i < there.gradients.size(); ++i) {
      here.gradients[i].copy_(at::randn(here.gradients[i].sizes()) * std::pow(10., i % 4 - 2.));
      there.gradients[i].copy_(here.gradients[i]);
    }
  }

  static void take_adamw_step(AdamWTensors& there, AdamWTensors& here, const AdamWNumbers& numbers,
                              std::optional<double> factor) {
    UpdateControl on_gpu, on_cpu{.arithmetic = Arithmetic::Cuda};
    if (factor) {
      on_cpu.factor = at::full({}, *factor);
      on_gpu.factor = on_cpu.factor->cuda();
    }
    here.steps = adamw_corrections(at::stack(there.steps), numbers).cpu().unbind();
    adamw_(there, numbers, on_gpu);
    adamw_(here, numbers, on_cpu);
  }
};

TEST_F(CpuForCuda, StepsOfAdamWAreTheSameBits) {
  for (const double decay : {0., 0.1})
    for (const std::optional<double> factor : {std::optional<double>(), std::optional(0.37)})
      for (const int first_step : {1, 2, 10, 1000, 100'000}) {
        AdamWTensors there = every_layout(sizes_, c10::kCUDA), here = copies_of(there, c10::kCPU);
        for (at::Tensor& step : there.steps) step.fill_(first_step);
        const AdamWNumbers numbers{.lr = 3e-3, .weight_decay = decay};
        for (int update = 0; update < 20; ++update) {
          renew_gradients(there, here);
          take_adamw_step(there, here, numbers, factor);
          for (at::Tensor& step : there.steps) step.add_(1);
        }
        expect_same_bits(here, there, "from step " + std::to_string(first_step));
      }
}

TEST_F(CpuForCuda, StepsOfSgdAreTheSameBits) {
  for (const double momentum : {0., 0.9})
    for (const double decay : {0., 0.1}) {
      const AdamWTensors there = every_layout(sizes_, c10::kCUDA), here = copies_of(there, c10::kCPU);
      const SgdNumbers numbers{.lr = 3e-2, .momentum = momentum, .weight_decay = decay};
      for (int update = 0; update < 20; ++update) {
        renew_gradients(there, here);
        sgd_(sgd_of(there, momentum != 0), numbers);
        sgd_(sgd_of(here, momentum != 0), numbers, {.arithmetic = Arithmetic::Cuda});
      }
      expect_same_bits(here, there, "momentum " + std::to_string(momentum));
    }
}

TEST_F(CpuForCuda, SpecialNumbersToo) {
  AdamWTensors here = every_layout(sizes_, c10::kCPU);
  fill_with_random_bits(here);
  for (at::Tensor& step : here.steps) step.fill_(3);
  AdamWTensors there = copies_of(here, c10::kCUDA);
  take_adamw_step(there, here, kNumbers, 0.37);
  expect_same_bits(here, there, "AdamW");
  sgd_(sgd_of(there, true), {.momentum = 0.9, .weight_decay = 0.1});
  sgd_(sgd_of(here, true), {.momentum = 0.9, .weight_decay = 0.1}, {.arithmetic = Arithmetic::Cuda});
  expect_same_bits(here, there, "SGD");
}

TEST_F(UpdateCuda, HasNoArithmeticToChoose) {
  AdamWTensors tensors = half_parameters(Master::Split, at::kBFloat16, c10::kCUDA);
  EXPECT_EQ(message_of<Error>([&] { adamw_(tensors, kNumbers, {.arithmetic = Arithmetic::Cuda}); }),
            "adamw_: only the CPU can step in the arithmetic of another device, got parameters on cuda:0, "
            "which have it as theirs");
}

TEST_F(UpdateCuda, RefusesAParameterOfAnotherDevice) {
  AdamWTensors tensors = half_parameters(Master::Split, at::kBFloat16, c10::kCUDA);
  move_parameter(tensors, 1, c10::kCPU);
  EXPECT_EQ(message_of<Error>([&] { adamw_(tensors, kNumbers); }),
            "adamw_: parameter 1 is on cpu, parameter 0 on cuda:0; expected one device");
}

}  // namespace
}  // namespace snug::ops
