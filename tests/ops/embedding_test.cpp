#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "tests/ops/embedding_cases.h"

namespace snug::ops {
namespace {

TEST(Embedding, GradientsAreExactSumsRoundedOnce) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
    for (const std::int64_t hidden : {1, 3, 64, 200})
      snug::testing::expect_exact_gradients(at::kCPU, dtype, hidden);
}

TEST(Embedding, BitsDoNotDependOnTheNumberOfThreads) {
  const at::Tensor grad = at::randn({500, 130}), tokens = at::randint(40, {500}, at::kLong);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = embedding_backward(grad, tokens, 40);
  at::set_num_threads(3);
  const at::Tensor shared = embedding_backward(grad, tokens, 40);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(alone, shared));
}

TEST(Embedding, KeepsTheShapeOfTokens) {
  const at::Tensor weight = at::randn({5, 3});
  EXPECT_EQ(ops::embedding(weight, at::zeros({2, 4}, at::kInt)).sizes(), (at::IntArrayRef{2, 4, 3}));
  EXPECT_TRUE(at::equal(ops::embedding(weight, at::full({}, 2, at::kLong)), weight[2]));
}

std::string complaint(const at::Tensor& weight, const at::Tensor& tokens) {
  try {
    ops::embedding(weight, tokens);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Embedding, SaysWhatIsWrongWithItsInputs) {
  const at::Tensor weight = at::ones({5, 3}), tokens = at::zeros({4}, at::kLong);
  tokens[2] = 5;
  EXPECT_EQ(complaint(weight, tokens), "embedding: token 5 at position 2 is outside the table of 5 rows");
  tokens[2] = -1;
  EXPECT_EQ(complaint(weight, tokens.to(at::kInt)),
            "embedding: token -1 at position 2 is outside the table of 5 rows");
  EXPECT_THROW(embedding_backward(at::ones({4, 3}), tokens, 5), Error);
  EXPECT_EQ(complaint(at::ones({5}), tokens),
            "embedding: expected weight [rows, hidden] that is not empty, got [5]");
  EXPECT_EQ(complaint(at::ones({5, 0}), tokens),
            "embedding: expected weight [rows, hidden] that is not empty, got [5, 0]");
  EXPECT_EQ(complaint(weight.to(at::kInt), tokens), "embedding: expected floating point, got Int");
  EXPECT_EQ(complaint(weight, tokens.to(at::kFloat)), "embedding: expected tokens int64 or int32, got Float");
  EXPECT_EQ(complaint(weight, at::zeros({0}, at::kLong)), "embedding: no tokens, [0]");
  EXPECT_EQ(complaint(weight, at::zeros({2}, at::dtype(at::kLong).device(at::kMeta))),
            "embedding: weight is on cpu, tokens on meta");
}

}  // namespace
}  // namespace snug::ops
