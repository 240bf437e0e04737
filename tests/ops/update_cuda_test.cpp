#include <torch/cuda.h>

#include "snug/base/error.h"
#include "tests/ops/update_cases.h"
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

TEST_F(UpdateCuda, RefusesAParameterOfAnotherDevice) {
  AdamWTensors tensors = half_parameters(Master::Split, at::kBFloat16, c10::kCUDA);
  move_parameter(tensors, 1, c10::kCPU);
  EXPECT_EQ(message_of<Error>([&] { adamw_(tensors, kNumbers); }),
            "adamw_: parameter 1 is on cpu, parameter 0 on cuda:0; expected one device");
}

}  // namespace
}  // namespace snug::ops
