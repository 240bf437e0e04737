// What GradScaler must do on every device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <vector>

#include "snug/optim/sgd.h"
#include "snug/precision/grad_scaler.h"

namespace snug::testing {

inline at::Tensor fp32_weight(c10::Device device) {
  return at::ones({4}, at::TensorOptions(device)).requires_grad_();
}

// The loss w * x, so that the gradient is x.
inline void give_gradient(GradScaler& scaler, at::Tensor& weight, double x) {
  weight.mutable_grad().reset();
  scaler.scale((weight * x).sum()).backward();
}

// The scale goes 8, 4 after an overflow, and 8 again after two good steps.
inline void expect_it_skips_exactly_the_overflow(c10::Device device) {
  GradScaler scaler(device, {.init_scale = 8, .growth_interval = 2});
  at::Tensor weight = fp32_weight(device);
  torch::optim::SGD optimizer({weight}, 0.5);
  std::vector<bool> taken;
  std::vector<double> scales;
  for (const double x : {1.0, std::numeric_limits<double>::infinity(), 1.0, 1.0}) {
    give_gradient(scaler, weight, x);
    taken.push_back(scaler.step(optimizer));
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(taken, (std::vector{true, false, true, true}));
  EXPECT_EQ(scales, (std::vector{8.0, 4.0, 4.0, 8.0}));
  EXPECT_TRUE(at::equal(weight.detach().cpu(), at::full({4}, 1 - 3 * 0.5)));
}

// One scale for a torch optimizer and one of ours: each is skipped for its own gradients alone, and however
// many overflow, the scale is halved once per update(), and grows with updates, not with steps.
inline void expect_each_optimizer_is_skipped_for_its_own_overflow(c10::Device device) {
  constexpr double kOverflow = std::numeric_limits<double>::infinity();
  struct Round {
    double theirs, ours;  // gradients
    double scale;         // afterwards
  };
  GradScaler scaler(device, {.init_scale = 64, .growth_interval = 2});
  std::vector<at::Tensor> weights{fp32_weight(device), fp32_weight(device)};
  torch::optim::SGD theirs({weights[0]}, 0.5);
  optim::Sgd ours({weights[1]}, {.lr = 0.5});
  double left = 1, right = 1;  // what the weights must be
  for (const Round& round :
       {Round{1, kOverflow, 32}, Round{kOverflow, 1, 16}, Round{kOverflow, kOverflow, 8}, Round{1, 1, 8},
        Round{1, 1, 16}, Round{1, 1, 16}, Round{1, kOverflow, 8}, Round{1, 1, 8}}) {
    give_gradient(scaler, weights[0], round.theirs);
    give_gradient(scaler, weights[1], round.ours);
    if (round.scale == 8) scaler.unscale_(theirs);  // else step() does
    EXPECT_EQ(scaler.step(theirs), round.theirs == 1);
    EXPECT_EQ(scaler.step(ours), round.ours == 1);
    scaler.update();
    left -= round.theirs == 1 ? 0.5 : 0;
    right -= round.ours == 1 ? 0.5 : 0;
    EXPECT_EQ(scaler.get_scale(), round.scale);
    EXPECT_TRUE(at::equal(weights[0].detach().cpu(), at::full({4}, left)));
    EXPECT_TRUE(at::equal(weights[1].detach().cpu(), at::full({4}, right)));
  }
}

// fp16 parameters: the optimizer unscales in fp32 on the way.
inline void expect_our_optimizers_take_half(c10::Device device) {
  GradScaler scaler(device, {.init_scale = 1024});
  std::vector<at::Tensor> weights{at::ones({4}, at::TensorOptions(device).dtype(at::kHalf)).requires_grad_()};
  optim::Sgd optimizer(weights, {.lr = 0.5});
  const double tiny = 1e-7;  // nothing in fp16, but for the scale
  give_gradient(scaler, weights[0], 1);
  weights[0].mutable_grad().fill_(tiny * 1024);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(at::allclose(optimizer.exact(0).cpu(), at::full({4}, 1 - 0.5 * tiny), 0, 6e-8));
  EXPECT_FALSE(at::equal(optimizer.exact(0).cpu(), at::ones({4})));
  weights[0].mutable_grad().fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor before = optimizer.exact(0);
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(at::equal(optimizer.exact(0), before));
  EXPECT_EQ(scaler.get_scale(), 512);
}

}  // namespace snug::testing
