#include "snug/optim/adamw.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

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

const AdamWOptions kOptions{.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

torch::optim::AdamWOptions torch_options() {
  return torch::optim::AdamWOptions(1e-2).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1);
}

at::Tensor state_of(const Optimizer& optimizer, std::size_t parameter, const std::string& name) {
  for (const StateTensor& state : optimizer.state()) {
    if (state.parameter == parameter && state.name == name) return state.tensor;
  }
  ADD_FAILURE() << "no state " << name << " of parameter " << parameter;
  return {};
}

TEST(AdamW, FollowsTorch) {
  testing::expect_same_trajectory(
      [](auto& parameters) { return std::make_unique<AdamW>(parameters, kOptions); },
      [](auto& parameters) { return std::make_unique<torch::optim::AdamW>(parameters, torch_options()); });
}

TEST(AdamW, FollowsTorchWithDefaults) {
  testing::expect_same_trajectory(
      [](auto& parameters) { return std::make_unique<AdamW>(parameters); },
      [](auto& parameters) { return std::make_unique<torch::optim::AdamW>(parameters); });
}

TEST(AdamW, TakesTheLearningRateOfEachStep) {
  auto parameters = random_parameters();
  const auto before = parameters[0].detach().clone();
  AdamW optimizer(parameters, {.weight_decay = 0.5});
  give_gradients(parameters, 0);
  optimizer.step(0.0);
  EXPECT_TRUE(at::equal(parameters[0], before));
  optimizer.step(0.1);
  EXPECT_FALSE(at::allclose(parameters[0], before));
}

TEST(AdamW, DecaysMatricesOnlyIfAsked) {
  for (bool matrices_only : {false, true}) {
    std::vector<at::Tensor> parameters{at::ones({4, 4}).requires_grad_(), at::ones({4}).requires_grad_()};
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::zeros_like(parameter);
    AdamW optimizer(parameters, {.weight_decay = 0.5, .decay_matrices_only = matrices_only});
    optimizer.step(0.1);
    EXPECT_TRUE(at::allclose(parameters[0], at::full({4, 4}, 0.95)));
    EXPECT_TRUE(at::allclose(parameters[1], at::full({4}, matrices_only ? 1.0 : 0.95)));
  }
}

// The exact value follows an fp32 run on the same (16-bit) start and gradients; the parameter is that,
// rounded.
TEST(AdamW, KeepsTheExactValueOf16BitParameters) {
  for (const auto& [dtype, master] :
       {std::pair{at::kBFloat16, Master::Split}, {at::kBFloat16, Master::Fp32}, {at::kHalf, Master::Split}}) {
    auto parameters = random_parameters(dtype);
    std::vector<at::Tensor> reference;
    for (const auto& parameter : parameters)
      reference.push_back(parameter.detach().to(at::kFloat).requires_grad_());
    AdamWOptions options = kOptions;
    options.master = master;
    AdamW optimizer(parameters, options);
    torch::optim::AdamW exact(reference, torch_options());
    for (int step = 0; step < 20; ++step) {
      give_gradients(parameters, step);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        reference[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
      }
      optimizer.step();
      exact.step();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor value = optimizer.exact(i);
        ASSERT_TRUE(at::allclose(value, reference[i], 1e-6, 1e-7)) << "step " << step << " parameter " << i;
        // A split one rounds halves away from zero, torch to even.
        ASSERT_LE(parameters[i].ne(value.to(dtype)).sum().item<std::int64_t>(),
                  dtype == at::kBFloat16 && master == Master::Split ? 2 : 0);
      }
    }
  }
}

TEST(AdamW, BothMastersAreTheSameNumber) {
  auto whole = random_parameters(at::kBFloat16), split = random_parameters(at::kBFloat16);
  AdamWOptions options = kOptions;
  AdamW of_split(split, options);
  options.master = Master::Fp32;
  AdamW of_whole(whole, options);
  EXPECT_TRUE(state_of(of_split, 0, "remainder").defined());
  EXPECT_TRUE(state_of(of_whole, 0, "master").defined());
  for (int step = 0; step < 20; ++step) {
    give_gradients(whole, step);
    give_gradients(split, step);
    of_whole.step();
    of_split.step();
  }
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(of_whole.exact(i), of_split.exact(i)));
}

// What the issue of trust comes down to: the same run in torch, number for number.
TEST(AdamW, IsWithinTwoUnitsOfTheLastPlaceAfterTwentySteps) {
  auto ours = random_parameters(), theirs = random_parameters();
  AdamW optimizer(ours, {.lr = 1e-2, .eps = 1e-4, .weight_decay = 0.1});
  torch::optim::AdamW reference(theirs, torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.1));
  for (int step = 0; step < 20; ++step) {
    give_gradients(ours, step);
    give_gradients(theirs, step);
    optimizer.step();
    reference.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    at::NoGradGuard no_grad;
    // Of the numbers that were summed: a weight near zero is a difference of larger ones.
    const at::Tensor unit = at::maximum(theirs[i].abs(), at::full({}, 0.25)) * 1.1920929e-7;
    EXPECT_LE(((ours[i] - theirs[i]).abs() / unit).max().item<double>(), 2) << "parameter " << i;
  }
}

// Rounding takes every run away from the exact one, and a weight near zero by many of its units: ours no
// further than torch's in fp32, for every kind of weight and master, decayed or not, clipped and unscaled.
TEST(AdamW, IsAsCloseToTheExactRunAsTorch) {
  struct Layout {
    at::ScalarType dtype;
    Master master;
  };
  for (const Layout layout : {Layout{at::kFloat, Master::Split},
                              {at::kBFloat16, Master::Split},
                              {at::kBFloat16, Master::Fp32},
                              {at::kHalf, Master::Fp32}})
    for (const double decay : {0.0, 0.1})
      for (const float factor : {1.0f, 0.37f / 1024}) {
        SCOPED_TRACE(::testing::Message() << layout.dtype << " master " << static_cast<int>(layout.master)
                                          << " decay " << decay << " factor " << factor);
        const auto all_as = [&](at::ScalarType dtype) {
          at::manual_seed(11);
          return std::vector<at::Tensor>{
              at::randn({200, 300}).mul(0.1).to(layout.dtype).to(dtype).requires_grad_()};
        };
        auto ours = all_as(layout.dtype), theirs = all_as(at::kFloat), exact = all_as(at::kDouble);
        AdamW optimizer(ours, {.lr = 1e-2, .weight_decay = decay, .master = layout.master});
        const auto options = torch::optim::AdamWOptions(1e-2).weight_decay(decay);
        torch::optim::AdamW in_fp32(theirs, options), in_double(exact, options);
        for (int step = 0; step < 20; ++step) {
          give_gradients(ours, step);
          const at::Tensor gradient = ours[0].grad();
          theirs[0].mutable_grad() = gradient.to(at::kFloat) * factor;
          exact[0].mutable_grad() = gradient.to(at::kDouble) * static_cast<double>(factor);
          optimizer.step(1e-2, {.factor = at::full({}, factor)});
          in_fp32.step();
          in_double.step();
        }
        const at::NoGradGuard no_grad;
        const at::Tensor of_ours = (optimizer.exact(0).to(at::kDouble) - exact[0]).abs();
        const at::Tensor of_torch = (theirs[0].to(at::kDouble) - exact[0]).abs();
        EXPECT_LE(of_ours.mean().item<double>(), 1.05 * of_torch.mean().item<double>());
        EXPECT_LE(of_ours.max().item<double>(), 1.5 * of_torch.max().item<double>());
      }
}

TEST(AdamW, SmallStepsAreNotLostInBf16) {
  std::vector<at::Tensor> parameters{at::ones({8}, at::kBFloat16).requires_grad_()};
  AdamW optimizer(parameters, {.weight_decay = 0});
  for (int step = 0; step < 100; ++step) {
    parameters[0].mutable_grad() = at::ones({8}, at::kBFloat16);
    optimizer.step(1e-4);
  }
  EXPECT_TRUE(at::allclose(parameters[0].to(at::kFloat), at::full({8}, 0.99), 0, 2e-3));
}

TEST(AdamW, ReadsGradientsThatAreNotContiguous) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::manual_seed(3);
    const at::Tensor start = at::randn({5, 7}).to(dtype);
    const at::Tensor transposed = at::randn({7, 5}).to(dtype).t();
    std::vector<at::Tensor> plain{start.clone().requires_grad_()}, strided{start.clone().requires_grad_()};
    plain[0].mutable_grad() = transposed.contiguous();
    strided[0].mutable_grad() = transposed;
    ASSERT_FALSE(strided[0].grad().is_contiguous());
    AdamW(plain, kOptions).step();
    AdamW(strided, kOptions).step();
    EXPECT_TRUE(at::equal(plain[0], strided[0])) << dtype;
    EXPECT_FALSE(at::equal(plain[0], start));
  }
}

TEST(AdamW, ReadsAnExpandedGradient) {
  std::vector<at::Tensor> parameters{at::zeros({3, 4}).requires_grad_()};
  parameters[0].mutable_grad() = at::ones({}).expand({3, 4});
  AdamW(parameters, {.weight_decay = 0}).step(0.1);
  EXPECT_TRUE(at::allclose(parameters[0], at::full({3, 4}, -0.1)));
}

TEST(AdamW, SkipsParametersWithoutGradientAndTheirStepCount) {
  std::vector<at::Tensor> parameters{at::ones({3}).requires_grad_(), at::ones({3}).requires_grad_()};
  AdamW optimizer(parameters, kOptions);
  parameters[1].mutable_grad() = at::ones({3});
  optimizer.step();
  EXPECT_TRUE(at::equal(parameters[0], at::ones({3})));
  EXPECT_FALSE(at::equal(parameters[1], at::ones({3})));
  EXPECT_EQ(state_of(optimizer, 0, "step").item<float>(), 0.0F);
  EXPECT_EQ(state_of(optimizer, 1, "step").item<float>(), 1.0F);
}

TEST(AdamW, ContinuesFromItsCopiedState) {
  auto parameters = random_parameters(at::kBFloat16);
  AdamW optimizer(parameters, kOptions);
  for (int step = 0; step < 3; ++step) {
    give_gradients(parameters, step);
    optimizer.step();
  }
  std::vector<at::Tensor> resumed;
  for (const auto& parameter : parameters) resumed.push_back(parameter.detach().clone().requires_grad_());
  AdamW continued(resumed, kOptions);
  const auto from = optimizer.state();
  const auto to = continued.state();
  ASSERT_EQ(from.size(), to.size());
  for (std::size_t i = 0; i < from.size(); ++i) at::Tensor(to[i].tensor).copy_(from[i].tensor);
  give_gradients(parameters, 3);
  give_gradients(resumed, 3);
  optimizer.step();
  continued.step();
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i], resumed[i]));
}

TEST(AdamW, CountsItsState) {
  const std::uint64_t elements = 33 * 20 + 65 + 2 * 3 * 4 + 9;
  EXPECT_EQ(AdamW(random_parameters(at::kFloat)).state_bytes(), elements * 8 + 4 * 4);
  EXPECT_EQ(AdamW(random_parameters(at::kBFloat16)).state_bytes(), elements * 10 + 4 * 4);
  EXPECT_EQ(AdamW(random_parameters(at::kBFloat16), {.master = Master::Fp32}).state_bytes(),
            elements * 12 + 4 * 4);
  EXPECT_EQ(AdamW(random_parameters(at::kHalf)).state_bytes(), elements * 12 + 4 * 4);
}

TEST(AdamW, AllocatesNothingOfAParametersSizeInAStep) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 2; ++i) parameters.push_back(at::ones({1 << 18}, dtype).requires_grad_());
    AdamW optimizer(parameters, kOptions);
    give_gradients(parameters, 0);
    testing::Allocations allocations;
    optimizer.step();
    EXPECT_LT(allocations.peak_bytes(), 4096) << dtype;
  }
}

TEST(AdamW, ClipsAndSkipsOnTheWay) {
  auto plain = random_parameters(), scaled = random_parameters();
  AdamW one(plain, kOptions), other(scaled, kOptions);
  give_gradients(plain, 0);
  for (std::size_t i = 0; i < plain.size(); ++i) scaled[i].mutable_grad() = plain[i].grad() * 8;
  one.step();
  other.step_unscaled(at::full({}, 0.125), at::full({}, 2.0));
  EXPECT_TRUE(at::equal(scaled[0], random_parameters()[0]));
  EXPECT_EQ(state_of(other, 0, "step").item<float>(), 0.0F);
  other.step_unscaled(at::full({}, 0.125), at::zeros({}));
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], scaled[i]));
  EXPECT_EQ(state_of(other, 0, "step").item<float>(), 1.0F);
}

TEST(AdamW, StateOnMetaTakesNoMemory) {
  testing::Allocations allocations;
  const auto options = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  AdamW optimizer({at::empty({1 << 20, 1 << 10}, options).requires_grad_()});
  EXPECT_EQ(optimizer.state_bytes(), (std::uint64_t{10} << 30) + 4);
  EXPECT_EQ(allocations.peak_bytes(), 0);
}

TEST(AdamW, RefusesOptionsOutOfRange) {
  const auto refusal = [](const AdamWOptions& options) {
    return message_of<Error>([&] { AdamW(random_parameters(), options); });
  };
  EXPECT_EQ(refusal({.lr = -1}), "lr must be finite and at least 0, got -1");
  EXPECT_EQ(refusal({.beta1 = 1}), "beta1 must be at least 0 and below 1, got 1");
  EXPECT_EQ(refusal({.beta2 = -0.1}), "beta2 must be at least 0 and below 1, got -0.1");
  EXPECT_EQ(refusal({.eps = -1}), "eps must be finite and at least 0, got -1");
  EXPECT_EQ(refusal({.weight_decay = -1}), "weight_decay must be finite and at least 0, got -1");
}

}  // namespace
}  // namespace snug::optim
