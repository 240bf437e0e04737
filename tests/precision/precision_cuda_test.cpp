#include <ATen/ATen.h>
#include <torch/cuda.h>

#include "snug/precision/autocast.h"
#include "tests/precision/scaler_cases.h"

namespace snug {
namespace {

class PrecisionCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: precision on CUDA was not tested";
  }
};

TEST_F(PrecisionCuda, SkipsExactlyTheOverflow) {
  testing::expect_it_skips_exactly_the_overflow(c10::kCUDA);
}

TEST_F(PrecisionCuda, EachOptimizerIsSkippedForItsOwnOverflow) {
  testing::expect_each_optimizer_is_skipped_for_its_own_overflow(c10::kCUDA);
}

TEST_F(PrecisionCuda, OurOptimizersTakeHalf) {
  testing::expect_our_optimizers_take_half(c10::kCUDA);
}

TEST_F(PrecisionCuda, AutocastCasts) {
  const at::Tensor x = at::ones({2, 3}, at::kCUDA), weight = at::ones({4, 3}, at::kCUDA);
  Autocast autocast(at::kCUDA);
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace snug
