// Fused operators on the CPU, against the formulas in fp64 and torch's operators in the same dtype.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "snug/base/error.h"
#include "tests/ops/fused_cases.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

const auto kAsItIs = [](const at::Tensor& tensor) { return tensor; };

TEST(FusedOperators, AreTheirFormulas) {
  for (const FusedCase& fused : fused_cases()) {
    const Tensors ours = run_fused(fused.fused, fused.inputs, kAsItIs);
    const Tensors exact = run_fused(fused.plain, fused.inputs, kAsItIs);
    ASSERT_EQ(ours.size(), exact.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), exact[i].sizes()) << fused.name << ", result " << i;
      EXPECT_TRUE(at::allclose(ours[i], exact[i], 1e-9, 1e-9)) << fused.name << ", result " << i;
    }
  }
}

TEST(FusedOperators, AreAsExactAsTorch) {
  expect_as_exact_as_torch(kAsItIs);
}

TEST(FusedOperators, TakeWhatIsNotContiguous) {
  const at::Tensor x = at::randn({6, 10}, at::kDouble).t(), weight = at::randn({6}, at::kDouble);
  EXPECT_TRUE(at::allclose(rms_norm(x, weight, 1e-5), plain_rms_norm(x, weight)));
  EXPECT_TRUE(at::allclose(swiglu(x, x), at::silu(x) * x));
  EXPECT_TRUE(at::allclose(layer_norm(x, weight, weight, 1e-5), plain_layer_norm(x, weight, weight)));
  EXPECT_TRUE(
      at::allclose(add_layer_norm(x, x, weight, weight, 1e-5).out, plain_layer_norm(2 * x, weight, weight)));
  const at::Tensor heads = at::randn({2, 6, 5, 3}, at::kDouble).permute({0, 2, 3, 1});
  const RopeTable table = make_rope_table(5, 6, 1e4, heads.options());
  EXPECT_TRUE(
      at::equal(norm_rope(heads, weight, table, 1e-5), norm_rope(heads.contiguous(), weight, table, 1e-5)));
  EXPECT_TRUE(at::allclose(ops::gelu(x), at::gelu(x)));
  const at::Tensor tokens = at::arange(6).view({2, 3}).t();
  EXPECT_TRUE(at::equal(ops::embedding(x, tokens), at::embedding(x, tokens)));
  EXPECT_TRUE(at::allclose(project(x, {weight.view({1, 6})})[0], at::linear(x, weight.view({1, 6}))));
}

TEST(FusedOperators, ASumThatAloneIsUsedPassesItsGradient) {
  const at::Tensor x = at::randn({2, 4}).requires_grad_(), residual = at::randn({2, 4}).requires_grad_();
  add_rms_norm(x, residual, at::ones({4}), 1e-5).sum.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({2, 4})));
  EXPECT_TRUE(at::equal(residual.grad(), at::ones({2, 4})));
  add_layer_norm(x, residual, at::ones({4}), {}, 1e-5).sum.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2, 4}, 2.0f)));
  EXPECT_TRUE(at::equal(residual.grad(), at::full({2, 4}, 2.0f)));
}

TEST(FusedOperators, ANormOfRowsOfOneElementIsItsBias) {
  const at::Tensor x = at::randn({3, 1}).requires_grad_(), weight = at::randn({1}).requires_grad_();
  const at::Tensor bias = at::randn({1}).requires_grad_();
  const at::Tensor out = layer_norm(x, weight, bias, 1e-5);
  EXPECT_TRUE(at::equal(out, bias.expand({3, 1})));
  out.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::zeros({3, 1})));
  EXPECT_TRUE(at::equal(weight.grad(), at::zeros({1})));
  EXPECT_TRUE(at::equal(bias.grad(), at::full({1}, 3.0f)));
}

// But for the gradient of the weight, which all rows share.
TEST(FusedOperators, ARowThatIsNotFiniteSpoilsNoOtherInANorm) {
  at::manual_seed(9);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor x = at::randn({5, 37}, at::kDouble), weight = at::randn({37}, at::kDouble);
  const at::Tensor others = at::tensor({0, 1, 3, 4});
  const std::vector<std::function<Tensors(const Tensors&)>> norms{
      [](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
      [](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[1].detach(), 1e-5)}; },
      [](const Tensors& in) {
        auto [sum, out] = add_rms_norm(in[0], in[0], in[1], 1e-5);
        return Tensors{sum, out};
      },
      [](const Tensors& in) {
        auto [sum, out] = add_layer_norm(in[0], in[0], in[1], {}, 1e-5);
        return Tensors{sum, out};
      }};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity})
      for (std::size_t norm = 0; norm < norms.size(); ++norm) {
        const auto rounded = [&](const at::Tensor& tensor) { return tensor.to(dtype); };
        at::Tensor spoiled = x.clone();
        spoiled[2][30] = bad;
        const Tensors whole = run_fused(norms[norm], {x, weight}, rounded);
        const Tensors hurt = run_fused(norms[norm], {spoiled, weight}, rounded);
        for (std::size_t i = 0; i + 1 < whole.size(); ++i) {
          EXPECT_TRUE(at::equal(hurt[i].index_select(0, others), whole[i].index_select(0, others)))
              << dtype << ", " << bad << ", norm " << norm << ", result " << i;
          EXPECT_FALSE(at::isfinite(hurt[i][2]).all().item<bool>())
              << dtype << ", " << bad << ", norm " << norm << ", result " << i;
        }
        EXPECT_FALSE(at::isfinite(hurt.back()).all().item<bool>())
            << dtype << ", " << bad << ", norm " << norm;
      }
}

TEST(FusedOperators, StatisticsOfANormAreFp32) {
  const at::Tensor x = at::randn({2, 3, 8}).to(at::kBFloat16), weight = at::ones({8}, at::kBFloat16);
  const auto [out, mean, rstd] = layer_norm_with_statistics(x, weight, {}, 1e-5);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_EQ(rstd.scalar_type(), at::kFloat);
  EXPECT_EQ(mean.sizes(), (at::IntArrayRef{6}));
  EXPECT_TRUE(at::allclose(mean, x.to(at::kFloat).mean(-1).flatten()));
}

TEST(FusedOperators, AProjectionThatNobodyUsedCostsNothing) {
  const at::Tensor x = at::randn({2, 4}).requires_grad_();
  const at::Tensor used = at::randn({3, 4}).requires_grad_(), unused = at::randn({5, 4}).requires_grad_();
  project(x, {used, unused})[0].sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), at::ones({2, 3}).mm(used.detach())));
  EXPECT_TRUE(used.grad().defined());
  EXPECT_FALSE(unused.grad().defined());
}

TEST(FusedOperators, ALossWithoutGradModeMakesNoGradients) {
  const at::Tensor hidden = at::randn({4, 8}).requires_grad_(), weight = at::randn({16, 8}).requires_grad_();
  const at::Tensor targets = at::randint(16, {4}, at::kLong);
  at::NoGradGuard no_grad;
  const at::Tensor loss = linear_cross_entropy(hidden, weight, targets);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_TRUE(at::allclose(loss, plain_loss(hidden, weight, targets)));
}

TEST(FusedOperators, ALossOfFrozenWeightsHasTheGradientOfHiddenAlone) {
  const at::Tensor hidden = at::randn({4, 8}).requires_grad_(), weight = at::randn({16, 8});
  const at::Tensor targets = at::randint(16, {4}, at::kLong);
  linear_cross_entropy(hidden, weight, targets).backward();
  const at::Tensor ours = hidden.grad().clone();
  hidden.mutable_grad().reset();
  plain_loss(hidden, weight, targets).backward();
  EXPECT_TRUE(at::allclose(ours, hidden.grad(), 1e-5, 1e-6));
}

TEST(FusedOperators, ALossMayBePartOfAnotherAndBeRetained) {
  const at::Tensor hidden = at::randn({4, 8}).requires_grad_(), weight = at::randn({16, 8}).requires_grad_();
  const at::Tensor targets = at::randint(16, {4}, at::kLong);
  const at::Tensor twice = 2 * linear_cross_entropy(hidden, weight, targets);
  twice.backward({}, /*retain_graph=*/true);
  weight.mutable_grad().reset();
  twice.backward();
  const at::Tensor ours = weight.grad().clone();
  weight.mutable_grad().reset();
  (2 * plain_loss(hidden, weight, targets)).backward();
  EXPECT_TRUE(at::allclose(ours, weight.grad(), 1e-5, 1e-6));
  const at::Tensor once = linear_cross_entropy(hidden, weight, targets);
  once.backward();
  EXPECT_THROW(once.backward(), Error);
}

TEST(FusedOperators, AHalfLossMayBeScaledInsideOrOutside) {
  expect_gradients_survive_half(at::kCPU);
}

TEST(FusedOperators, ALossTakesBlocksOfMinusInfinity) {
  expect_minus_infinity_is_no_word(at::kCPU);
}

TEST(FusedOperators, ALossOverFewWordsIsExactAndNanIsSeen) {
  expect_few_words_and_nan_are_seen(at::kCPU);
}

TEST(FusedOperators, RefuseWhatTheyCannotDo) {
  const at::Tensor x = at::ones({2, 4}), weight = at::ones({4});
  EXPECT_THROW(rms_norm(x, at::ones({5}), 1e-5), Error);
  EXPECT_THROW(rms_norm(at::ones({0, 4}), weight, 1e-5), Error);
  EXPECT_THROW(rms_norm(x.to(at::kLong), weight.to(at::kLong), 1e-5), Error);
  EXPECT_THROW(rms_norm(x, weight.to(at::kHalf), 1e-5), Error);
  EXPECT_THROW(add_rms_norm(x, at::ones({4}), weight, 1e-5), Error);
  EXPECT_THROW(swiglu(x, at::ones({2, 5})), Error);
  EXPECT_THROW(swiglu(at::ones({0}), at::ones({0})), Error);
  EXPECT_THROW(add_layer_norm(x, at::ones({4}), weight, {}, 1e-5), Error);
  EXPECT_THROW(add_layer_norm(x, x, weight, at::ones({5}), 1e-5), Error);
  EXPECT_THROW(layer_norm(x, at::ones({5}), {}, 1e-5), Error);
  EXPECT_THROW(layer_norm(x, weight, at::ones({5}), 1e-5), Error);
  EXPECT_THROW(layer_norm(x, weight, weight.to(at::kHalf), 1e-5), Error);
  EXPECT_THROW(layer_norm(at::ones({0, 4}), weight, {}, 1e-5), Error);
  EXPECT_THROW(layer_norm(at::ones({}), weight, {}, 1e-5), Error);
  EXPECT_THROW(layer_norm(x.to(at::kLong), weight.to(at::kLong), {}, 1e-5), Error);
  EXPECT_THROW(ops::gelu(at::ones({0})), Error);
  EXPECT_THROW(ops::gelu(at::ones({2}, at::kInt)), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({9, 5}), at::zeros({2}, at::kLong)), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({9, 4}), at::zeros({3}, at::kLong)), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({9, 4}), at::zeros({2}, at::kInt)), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({9, 4}), at::zeros({2}, at::kLong), {.rows_at_a_time = -1}),
               Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({9, 4}), at::full({2}, 9, at::kLong)), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::ones({0, 4}), at::zeros({2}, at::kLong)), Error);
  EXPECT_TRUE(
      at::equal(linear_cross_entropy(x, at::ones({9, 4}), at::full({2}, 50, at::kLong), {.ignore_index = 50}),
                at::zeros({})));
  const at::Tensor heads = at::ones({1, 1, 2, 4});
  RopeTable table = make_rope_table(2, 4, 1e4, heads.options());
  table.sin = table.sin.narrow(0, 0, 1);
  EXPECT_THROW(rope(heads, table), Error);
  EXPECT_THROW(norm_rope(heads.transpose(1, 2), weight, table, 1e-5), Error);
  const RopeTable fitting = make_rope_table(2, 4, 1e4, heads.options());
  EXPECT_THROW(norm_rope(heads, weight, fitting, 1e-5), Error) << "heads before tokens";
  EXPECT_THROW(norm_rope(heads.transpose(1, 2), at::ones({6}), fitting, 1e-5), Error);
  EXPECT_THROW(norm_rope(heads.transpose(1, 2), weight.to(at::kHalf), fitting, 1e-5), Error);
  EXPECT_THROW(norm_rope(x, weight, fitting, 1e-5), Error);
  EXPECT_THROW(project(x, {}), Error);
  EXPECT_THROW(project(x, {at::ones({3, 5})}), Error);
  EXPECT_THROW(project(x, {at::ones({3, 4}, at::kDouble)}), Error);
  EXPECT_THROW(project(x, {at::ones({3, 4})}, {at::ones({4})}), Error);
  EXPECT_THROW(project(x, {at::ones({3, 4}), at::ones({3, 4})}, {at::ones({3})}), Error);
  EXPECT_THROW(linear(x, at::ones({3, 4}), {}, WeightLayout::InOut), Error);
}

TEST(FusedOperators, ASecondDerivativeIsRefusedByName) {
  const at::Tensor x = at::randn({2, 4}).requires_grad_();
  const at::Tensor y = rms_norm(x, at::ones({4}), 1e-5).sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  try {
    first[0].sum().backward();
    ADD_FAILURE() << "differentiated twice";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("rms_norm_backward"), std::string::npos) << error.what();
  }
  const at::Tensor hidden = at::randn({4, 8}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(hidden, at::randn({16, 8}), at::zeros({4}, at::kLong));
  EXPECT_THROW(torch::autograd::grad({loss}, {hidden}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               Error);
}

}  // namespace
}  // namespace snug::ops
