#include "snug/optim/clip.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>
#include <vector>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/optim/allocations.h"

namespace snug::optim {
namespace {

std::vector<at::Tensor> random_gradients(at::ScalarType dtype) {
  at::manual_seed(1);
  std::vector<at::Tensor> gradients;
  const std::vector<std::vector<std::int64_t>> shapes{{40, 30}, {17}, {3, 4, 5}, {}};
  for (const auto& shape : shapes) {
    gradients.push_back(at::randn(shape, at::kFloat).to(dtype));
  }
  return gradients;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.clone());
  return result;
}

double exact_norm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const auto& gradient : gradients) sum += gradient.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum);
}

TEST(ClipGradNorm, DoesWhatTorchDoes) {
  for (double max_norm : {0.5, 10.0, 1000.0}) {
    const auto gradients = random_gradients(at::kFloat);
    std::vector<at::Tensor> parameters;
    for (const auto& gradient : gradients) {
      parameters.push_back(at::zeros_like(gradient).requires_grad_());
      parameters.back().mutable_grad() = gradient.clone();
    }
    const double expected = torch::nn::utils::clip_grad_norm_(parameters, max_norm);
    const at::Tensor norm = clip_grad_norm_(gradients, max_norm);
    EXPECT_EQ(norm.dim(), 0);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::allclose(gradients[i], parameters[i].grad(), 1e-6, 0))
          << "max_norm " << max_norm << " tensor " << i;
    }
  }
}

TEST(ClipGradNorm, LeavesSmallGradientsUntouched) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto gradients = random_gradients(dtype);
    const auto before = copies(gradients);
    clip_grad_norm_(gradients, 1e6);
    for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], before[i]));
  }
}

TEST(ClipGradNorm, OnlyMeasuresWithZero) {
  const auto gradients = random_gradients(at::kFloat);
  const auto before = copies(gradients);
  EXPECT_NEAR(clip_grad_norm_(gradients, 0).item<double>(), exact_norm(before), 1e-4);
  for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], before[i]));
}

// bf16 has 8 bits: a norm or a factor rounded to it would be off by up to 4e-3, and the sum of the squares of
// 2^20 ones would stop growing at 256.
TEST(ClipGradNorm, ComputesInFp32ForBf16) {
  std::vector<at::Tensor> gradients{at::ones({1 << 20}, at::kBFloat16), at::full({1, 3}, 5.0, at::kBFloat16)};
  const double expected = exact_norm(gradients);
  const at::Tensor norm = clip_grad_norm_(gradients, 600.0);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_NEAR(norm.item<double>(), expected, 1e-5 * expected);
  const auto factor = static_cast<float>(600.0 / (expected + 1e-6));
  EXPECT_TRUE(at::equal(gradients[1], at::full({1, 3}, 5.0F * factor, at::kFloat).to(at::kBFloat16)));
  EXPECT_EQ(gradients[0].scalar_type(), at::kBFloat16);
}

TEST(ClipGradNorm, SkipsUndefinedGradients) {
  EXPECT_EQ(clip_grad_norm_({at::Tensor(), at::full({4}, 3.0)}, 0).item<float>(), 6.0F);
  EXPECT_EQ(clip_grad_norm_({at::Tensor()}, 1.0).item<float>(), 0.0F);
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0.0F);
}

TEST(ClipGradNorm, ScalesGradientsThatAreNotContiguous) {
  const at::Tensor gradient = at::full({6, 4}, 2.0).t();
  clip_grad_norm_({gradient}, 1.0);
  EXPECT_NEAR(gradient.norm().item<float>(), 1.0, 1e-5);
}

TEST(ClipGradNorm, WorksOnMeta) {
  const auto gradient = at::empty({100, 100}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor norm = clip_grad_norm_({gradient, gradient}, 1.0);
  EXPECT_TRUE(norm.is_meta());
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.dim(), 0);
}

TEST(ClipGradNorm, TakesNoMemoryOfAGradientsSize) {
  const std::vector<at::Tensor> gradients{at::randn({1 << 20}), at::randn({1 << 20})};
  testing::Allocations allocations;
  clip_grad_norm_(gradients, 1.0);
  EXPECT_GT(allocations.peak_bytes(), 0);
  EXPECT_LT(allocations.peak_bytes(), 4096);
}

TEST(ClipGradNorm, HoldsOneBf16GradientAtATimeAsFp32) {
  const std::vector<at::Tensor> gradients(4, at::ones({1 << 18}, at::kBFloat16));
  testing::Allocations allocations;
  clip_grad_norm_(gradients, 1.0);
  EXPECT_LT(allocations.peak_bytes(), (4 << 18) + 4096);
}

TEST(ClipGradNorm, RefusesANegativeNorm) {
  EXPECT_EQ(testing::message_of<Error>([] { clip_grad_norm_({}, -1); }),
            "the norm to clip to must be at least 0 (0 = only measure), got -1");
  EXPECT_EQ(testing::message_of<Error>([] { clip_grad_norm_({}, std::numeric_limits<double>::quiet_NaN()); }),
            "the norm to clip to must be at least 0 (0 = only measure), got nan");
}

TEST(ClipFactor, RefusesANormOfZero) {
  EXPECT_EQ(testing::message_of<Error>([] { clip_factor(at::ones({}), 0); }),
            "the norm to clip to must be above 0, got 0");
}

}  // namespace
}  // namespace snug::optim
