#include "snug/nn/rms_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace snug::nn {
namespace {

TEST(RmsNorm, IsTheFormula) {
  at::manual_seed(1);
  RmsNorm norm(16, 1e-5, at::TensorOptions(at::kDouble));
  at::NoGradGuard no_grad;
  norm->weight.uniform_(0.5, 2.0);
  const at::Tensor x = at::randn({3, 5, 16}, at::kDouble);
  const at::Tensor expected = x / (x.pow(2).mean(-1, true) + 1e-5).sqrt() * norm->weight;
  EXPECT_TRUE(at::allclose(norm(x), expected, 1e-12, 1e-12));
}

TEST(RmsNorm, StartsAsOnes) {
  RmsNorm norm(4, 1e-6, at::TensorOptions());
  EXPECT_TRUE(at::equal(norm->weight, at::ones({4})));
}

}  // namespace
}  // namespace snug::nn
