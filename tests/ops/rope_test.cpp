#include "snug/ops/rope.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "snug/base/error.h"

namespace snug::ops {
namespace {

// As Hugging Face writes it: x * cos + rotate_half(x) * sin, with both tables doubled.
at::Tensor plain_rope(const at::Tensor& x, const RopeTable& table) {
  auto half = x.size(-1) / 2;
  auto rotated = at::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1);
  return x * at::cat({table.cos, table.cos}, -1) + rotated * at::cat({table.sin, table.sin}, -1);
}

TEST(Rope, EqualsThePublishedFormula) {
  at::manual_seed(7);
  auto x = at::randn({2, 11, 3, 16}, at::kDouble).transpose(1, 2).set_requires_grad(true);
  auto up = at::randn({2, 3, 11, 16}, at::kDouble);
  auto table = make_rope_table(11, 16, 10000.0, at::kDouble);
  auto out = rope(x, table), plain = plain_rope(x, table);
  EXPECT_LT((out - plain).abs().max().item<double>(), 1e-14);
  EXPECT_EQ(out.strides(), x.strides());
  auto grad = torch::autograd::grad({out}, {x}, {up})[0],
       plain_grad = torch::autograd::grad({plain}, {x}, {up})[0];
  EXPECT_LT((grad - plain_grad).abs().max().item<double>(), 1e-14);
}

TEST(Rope, TableHoldsTheAnglesOfEveryPosition) {
  auto table = make_rope_table(100, 8, 500.0, at::kFloat);
  EXPECT_EQ(table.cos.sizes(), (at::IntArrayRef{100, 4}));
  for (std::int64_t i = 0; i < 4; ++i) {
    double angle = 99.0 / std::pow(500.0, i / 4.0);
    EXPECT_NEAR(table.cos[99][i].item<double>(), std::cos(angle), 1e-5);
    EXPECT_NEAR(table.sin[99][i].item<double>(), std::sin(angle), 1e-5);
  }
}

TEST(Rope, KeepsLengthsAndTheFirstPosition) {
  auto x = at::randn({1, 1, 6, 8}, at::kDouble);
  auto out = rope(x, make_rope_table(6, 8, 10000.0, at::kDouble));
  EXPECT_LT((out.norm() - x.norm()).abs().item<double>(), 1e-6);
  EXPECT_TRUE(out.select(2, 0).equal(x.select(2, 0)));
  EXPECT_FALSE(out.select(2, 1).equal(x.select(2, 1)));
}

TEST(Rope, SaysWhatIsWrongWithItsInputs) {
  auto table = make_rope_table(6, 8, 10000.0, at::kFloat);
  EXPECT_THROW(rope(at::ones({1, 1, 7, 8}), table), Error);
  EXPECT_THROW(rope(at::ones({1, 1, 6, 10}), table), Error);
  EXPECT_THROW(rope(at::ones({1, 1, 6, 8}, at::kDouble), table), Error);
  EXPECT_THROW(make_rope_table(6, 7, 10000.0, at::kFloat), Error);
}

}  // namespace
}  // namespace snug::ops
