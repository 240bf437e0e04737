// Two optimizers on equal parameters, fed the same random gradients: do they stay together?
#pragma once

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <vector>

namespace snug::testing {

inline std::vector<at::Tensor> random_parameters(at::ScalarType dtype = at::kFloat) {
  at::manual_seed(7);
  std::vector<at::Tensor> parameters;
  const std::vector<std::vector<std::int64_t>> shapes{{33, 20}, {65}, {2, 3, 4}, {1, 9}};
  for (const auto& shape : shapes) {
    parameters.push_back(at::randn(shape, at::kFloat).to(dtype).requires_grad_());
  }
  return parameters;
}

// Gradients of changing size, some zero, as a run has them.
inline at::Tensor random_gradient(const at::Tensor& like, int step) {
  at::NoGradGuard no_grad;
  at::Tensor gradient = at::randn(like.sizes(), at::kFloat) * (step % 3 + 0.1);
  gradient.masked_fill_(at::rand(like.sizes()) < 0.1, 0);
  return gradient;
}

inline void give_gradients(std::vector<at::Tensor>& parameters, int step) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  for (at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = random_gradient(parameter, step).to(parameter.scalar_type());
  }
}

template <class Ours, class Theirs>
void expect_same_trajectory(Ours make_ours, Theirs make_theirs, int steps = 20) {
  std::vector<at::Tensor> ours_parameters = random_parameters();
  std::vector<at::Tensor> theirs_parameters = random_parameters();
  auto ours = make_ours(ours_parameters);
  auto theirs = make_theirs(theirs_parameters);
  for (int step = 0; step < steps; ++step) {
    give_gradients(ours_parameters, step);
    give_gradients(theirs_parameters, step);
    ours->step();
    theirs->step();
    for (std::size_t i = 0; i < ours_parameters.size(); ++i) {
      ASSERT_TRUE(at::allclose(ours_parameters[i], theirs_parameters[i], 1e-6, 1e-7))
          << "step " << step << " parameter " << i;
    }
  }
  EXPECT_FALSE(at::allclose(ours_parameters[0], random_parameters()[0]));
}

}  // namespace snug::testing
