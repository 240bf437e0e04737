#include "snug/optim/sgd.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/optim/allocations.h"
#include "tests/optim/trajectory.h"

namespace snug::optim {
namespace {

using testing::give_gradients;
using testing::message_of;
using testing::random_parameters;

TEST(Sgd, FollowsTorch) {
  for (double momentum : {0.0, 0.9}) {
    for (double decay : {0.0, 0.1}) {
      const SgdOptions options{.lr = 1e-2, .momentum = momentum, .weight_decay = decay};
      const auto theirs = torch::optim::SGDOptions(1e-2).momentum(momentum).weight_decay(decay);
      testing::expect_same_trajectory(
          [&](auto& parameters) { return std::make_unique<Sgd>(parameters, options); },
          [&](auto& parameters) { return std::make_unique<torch::optim::SGD>(parameters, theirs); });
    }
  }
}

TEST(Sgd, CountsItsState) {
  const std::uint64_t elements = 33 * 20 + 65 + 2 * 3 * 4 + 9;
  EXPECT_EQ(Sgd(random_parameters()).state_bytes(), 0u);
  EXPECT_EQ(Sgd(random_parameters(), {.momentum = 0.9}).state_bytes(), elements * 4);
  EXPECT_EQ(Sgd(random_parameters(at::kBFloat16), {.momentum = 0.9}).state_bytes(), elements * 6);
}

TEST(Sgd, SmallStepsAreNotLostInBf16) {
  std::vector<at::Tensor> parameters{at::ones({8}, at::kBFloat16).requires_grad_()};
  Sgd optimizer(parameters);
  for (int step = 0; step < 100; ++step) {
    parameters[0].mutable_grad() = at::ones({8}, at::kBFloat16);
    optimizer.step(1e-4);
  }
  EXPECT_TRUE(at::allclose(parameters[0].to(at::kFloat), at::full({8}, 0.99), 0, 2e-3));
}

TEST(Sgd, AllocatesNothingOfAParametersSizeInAStep) {
  std::vector<at::Tensor> parameters{at::ones({1 << 18}).requires_grad_()};
  Sgd optimizer(parameters, {.momentum = 0.9, .weight_decay = 0.1});
  give_gradients(parameters, 0);
  testing::Allocations allocations;
  optimizer.step(0.1);
  EXPECT_LT(allocations.peak_bytes(), 4096);
}

TEST(Sgd, StepsOnMeta) {
  const auto options = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  std::vector<at::Tensor> parameters{at::empty({4, 4}, options).requires_grad_()};
  Sgd optimizer(parameters, {.momentum = 0.9});
  parameters[0].mutable_grad() = at::empty({4, 4}, options);
  EXPECT_NO_THROW(optimizer.step(0.1));
}

TEST(Sgd, RefusesOptionsOutOfRange) {
  const auto refusal = [](const SgdOptions& options) {
    return message_of<Error>([&] { Sgd(random_parameters(), options); });
  };
  EXPECT_EQ(refusal({.momentum = -1}), "momentum must be finite and at least 0, got -1");
  EXPECT_EQ(refusal({.weight_decay = -1}), "weight_decay must be finite and at least 0, got -1");
}

}  // namespace
}  // namespace snug::optim
