#include "tests/ops/gradient_buffer_cases.h"
#include "tests/optim/allocations.h"

namespace snug::ops {
namespace {

using testing::TwoPasses;

TEST(GradientBuffer, AddsInPlace) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    testing::expect_it_adds_in_place(dtype, {}, c10::kCPU);
  testing::expect_it_adds_in_place(at::kBFloat16, at::kFloat, c10::kCPU);
}

TEST(GradientBuffer, TheSecondPassNeedsNoGradientOfItsOwn) {
  const at::Tensor x = at::randn({8, 512});
  const at::Tensor weight = at::randn({512, 512}).requires_grad_();
  const auto pass_bytes = [&] {
    const at::Tensor loss = ops::linear(x, weight).sum();
    testing::Allocations allocations;
    loss.backward();
    return allocations.peak_bytes();
  };
  const auto size = static_cast<std::int64_t>(weight.nbytes());
  EXPECT_GE(pass_bytes(), size);
  EXPECT_LT(pass_bytes(), size / 2);
}

TEST(GradientBuffer, AutogradGradSeesTheGradientAndLeavesTheBuffer) {
  TwoPasses passes(at::kFloat);
  passes.loss(0).backward();
  const at::Tensor before = passes.weight.grad().clone();
  const at::Tensor grad = torch::autograd::grad({passes.loss(1)}, {passes.weight})[0];
  EXPECT_TRUE(grad.defined());
  EXPECT_TRUE(at::equal(passes.weight.grad(), before));
}

TEST(GradientBuffer, HooksSeeEveryGradient) {
  TwoPasses passes(at::kFloat);
  std::vector<at::Tensor> seen;
  passes.weight.register_hook([&](const at::Tensor& grad) { seen.push_back(grad.clone()); });
  passes.loss(0).backward();
  passes.loss(1).backward();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_TRUE(seen[1].defined() && at::allclose(seen[0] + seen[1], passes.weight.grad()));
}

TEST(GradientBuffer, AWeightFrozenSinceTheForwardGetsNothing) {
  TwoPasses passes(at::kFloat);
  passes.weight.mutable_grad() = at::zeros_like(passes.weight);
  passes.x[0].requires_grad_();
  const at::Tensor loss = passes.loss(0);
  passes.weight.requires_grad_(false);
  loss.backward();
  EXPECT_EQ(passes.weight.grad().abs().sum().item<float>(), 0);
}

TEST(GradientBuffer, AGraphThatIsKeptAddsEveryTime) {
  TwoPasses passes(at::kDouble);
  const at::Tensor loss = passes.loss(0);
  loss.backward({}, /*keep_graph=*/true);
  const at::Tensor once = passes.weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::allclose(passes.weight.grad(), 2 * once));
}

TEST(GradientBuffer, ASecondDerivativeGoesThroughAutograd) {
  TwoPasses passes(at::kDouble);
  passes.weight.mutable_grad() = at::zeros_like(passes.weight);
  const at::Tensor before = passes.weight.grad();
  passes.loss(0).backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  EXPECT_FALSE(passes.weight.grad().is_same(before)) << "a sum that is differentiable is a new tensor";
  passes.weight.mutable_grad().reset();  // else weight and gradient hold one another
}

TEST(GradientBuffer, AWeightUsedTwiceInOneGraphGetsBoth) {
  TwoPasses passes(at::kDouble);
  passes.weight.mutable_grad() = at::ones_like(passes.weight);
  (passes.loss(0) + passes.loss(1)).backward();
  EXPECT_TRUE(at::allclose(passes.weight.grad(), passes.exact() + 1));
}

TEST(GradientBuffer, AStridedGradientIsAddedTo) {
  TwoPasses passes(at::kDouble);
  passes.weight.mutable_grad() = at::zeros({24, 16}, at::kDouble).t();
  passes.loss(0).backward();
  passes.loss(1).backward();
  EXPECT_TRUE(at::allclose(passes.weight.grad(), passes.exact()));
}

}  // namespace
}  // namespace snug::ops
