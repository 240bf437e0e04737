// Gradients of several micro-batches: added inside the products where that is allowed, by autograd elsewhere.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "snug/ops/project.h"

namespace snug::testing {

struct TwoPasses {
  explicit TwoPasses(at::ScalarType dtype, c10::Device device = c10::kCPU) {
    at::manual_seed(21);
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype).to(device); };
    x = {random({32, 24}), random({32, 24})};
    weight = random({16, 24}).requires_grad_();
  }

  at::Tensor loss(int pass) const { return ops::linear(x[pass], weight).to(at::kFloat).square().sum(); }

  // In fp64, from the same numbers.
  at::Tensor exact() const {
    at::Tensor wide = weight.detach().to(at::kDouble).requires_grad_(), sum;
    for (const at::Tensor& rows : x) {
      const at::Tensor out = at::linear(rows.to(at::kDouble), wide);
      const at::Tensor grad = torch::autograd::grad({out.square().sum()}, {wide})[0];
      sum = sum.defined() ? sum + grad : grad;
    }
    return sum;
  }

  std::vector<at::Tensor> x;
  at::Tensor weight;
};

inline double error_of_sum(const at::Tensor& sum, const at::Tensor& exact) {
  return ((sum.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// In the buffer's own place, and no less exact than what autograd would have added.
inline void expect_it_adds_in_place(at::ScalarType dtype, std::optional<at::ScalarType> grad_dtype,
                                    c10::Device device) {
  TwoPasses passes(dtype, device);
  if (grad_dtype) passes.weight.set_grad_dtype(grad_dtype);
  passes.loss(0).backward();
  const at::Tensor buffer = passes.weight.grad();
  EXPECT_EQ(buffer.scalar_type(), grad_dtype.value_or(dtype));
  passes.loss(1).backward();
  EXPECT_TRUE(passes.weight.grad().is_same(buffer));

  TwoPasses plain(dtype, device);
  at::Tensor sum;
  for (int pass : {0, 1}) {
    const at::Tensor grad = torch::autograd::grad({plain.loss(pass)}, {plain.weight})[0];
    sum = sum.defined() ? sum + grad : grad;
  }
  EXPECT_LE(error_of_sum(buffer, passes.exact()), error_of_sum(sum, passes.exact()) * 1.05 + 1e-7);
  EXPECT_FALSE(plain.weight.grad().defined());
}

}  // namespace snug::testing
