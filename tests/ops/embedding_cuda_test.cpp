// The gradient of embedding on a GPU: exact, the same every time, whatever tokens come.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "tests/ops/embedding_cases.h"

namespace snug::ops {
namespace {

class EmbeddingCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: embedding on CUDA was not tested";
  }
};

TEST_F(EmbeddingCuda, GradientsAreExactSumsRoundedOnce) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::int64_t hidden : {1, 3, 64, 200, 1032, 2048})
      snug::testing::expect_exact_gradients(at::kCUDA, dtype, hidden);
}

TEST_F(EmbeddingCuda, GivesTheSameBitsEveryTime) {
  for (const std::int64_t rows : {1, 40, 100'000}) {
    const at::Tensor grad = at::randn({20'000, 256}, at::kCUDA);
    const at::Tensor tokens = at::randint(rows, {20'000}, at::dtype(at::kLong).device(at::kCUDA));
    const at::Tensor once = embedding_backward(grad, tokens, rows);
    EXPECT_TRUE(at::equal(once, embedding_backward(grad, tokens, rows))) << rows << " rows";
    const at::Tensor exact =
        at::zeros({rows, 256}, grad.options().dtype(at::kDouble)).index_add_(0, tokens, grad.to(at::kDouble));
    EXPECT_LE(((once - exact).norm() / exact.norm()).item<double>(), 1e-6) << rows << " rows";
  }
}

TEST_F(EmbeddingCuda, TakesGradientsThatAreNotAligned) {
  const at::Tensor room = at::randn({100 * 64 + 1}, at::kCUDA).to(at::kBFloat16);
  const at::Tensor grad = room.narrow(0, 1, 100 * 64).view({100, 64});
  const at::Tensor tokens = at::arange(100, at::kCUDA).floor_divide(40);
  EXPECT_TRUE(at::equal(embedding_backward(grad, tokens, 3), embedding_backward(grad.clone(), tokens, 3)));
}

TEST_F(EmbeddingCuda, ABackwardLeavesOutTokensThatHaveNoRow) {
  const at::Tensor grad = at::ones({100, 8}, at::kCUDA);
  at::Tensor tokens = at::full({100}, 5, at::dtype(at::kLong).device(at::kCUDA));
  tokens.narrow(0, 0, 40).fill_(-1);
  tokens[99] = 2;
  const at::Tensor ours = embedding_backward(grad, tokens, 5);
  EXPECT_EQ(ours.sum().item<double>(), 8);
  EXPECT_EQ(ours[2].sum().item<double>(), 8);
}

}  // namespace
}  // namespace snug::ops
