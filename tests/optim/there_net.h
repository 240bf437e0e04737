// A net whose weights and gradients are on the host, against the same one whose stay: bit by bit, on any
// device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/hooks/region.h"
#include "snug/host/store.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/optim/host_parameters.h"
#include "snug/tape/checkpoint.h"

namespace snug::testing {

// Weights of more elements than stay anyway, biases of fewer.
struct ThereNet : torch::nn::Module {
  static constexpr std::int64_t kWidth = 160;

  explicit ThereNet(int count, at::Device device = at::kCPU, at::ScalarType dtype = at::kFloat) {
    at::manual_seed(5);
    for (int i = 0; i < count; ++i)
      layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    to(device, dtype);
  }
  static std::string region(std::size_t i) { return "there." + std::to_string(i); }

  at::Tensor forward(at::Tensor x, bool recomputes = false) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const hooks::RegionScope scope(region(i));
      const auto layer = [&](const at::Tensor& in) { return at::tanh(layers[i]->forward(in)); };
      x = recomputes ? checkpoint(layer, x) : layer(x);
    }
    return x;
  }

  void pass(int number, bool recomputes = false) {
    at::manual_seed(100 + number);
    const at::Tensor x = at::randn({4, kWidth}).to(layers[0]->bias.device(), layers[0]->bias.scalar_type());
    forward(x, recomputes).to(at::kFloat).pow(2).sum().backward();
  }

  std::vector<torch::nn::Linear> layers;
};

inline std::shared_ptr<optim::HostParameters> send_away(ThereNet& net,
                                                        const std::shared_ptr<host::Store>& store,
                                                        optim::HostShares shares = {1, 1}) {
  auto there = std::make_shared<optim::HostParameters>(store->device(), store, shares);
  for (std::size_t i = 0; i < net.layers.size(); ++i)
    there->add(ThereNet::region(i), net.layers[i]->parameters());
  return there;
}

inline std::unique_ptr<optim::AdamW> optimizer_of(ThereNet& net, const std::shared_ptr<host::Store>& store,
                                                  std::shared_ptr<optim::HostParameters> there,
                                                  optim::UpdateTime update = optim::UpdateTime::InStep,
                                                  double stepped_there = 0) {
  const optim::Placement placement{.on_host = 1,
                                   .store = store,
                                   .update = update,
                                   .parameters = std::move(there),
                                   .stepped_there = stepped_there};
  return std::make_unique<optim::AdamW>(net.parameters(),
                                        optim::AdamWOptions{.lr = 1e-2, .placement = placement});
}

inline void clipped_step(optim::Optimizer& optimizer) {
  optimizer.step(1e-2, {.factor = optim::clip_factor(optimizer.gradient_norm(), 0.5)});
  optimizer.zero_grad();
}

inline void expect_same_weights(optim::Optimizer& optimizer, ThereNet& plain) {
  const auto expected = plain.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(optimizer.weight(i).cpu(), expected[i].cpu())) << "parameter " << i;
}

// In steps of one to three passes.
inline void expect_bits_of_parameters_that_stay(at::Device device, at::ScalarType dtype,
                                                optim::HostShares shares, bool recomputes,
                                                optim::UpdateTime update, double stepped_there) {
  SCOPED_TRACE(::testing::Message() << dtype << ", weights " << shares.weights << ", gradients "
                                    << shares.gradients << (recomputes ? ", recomputed" : "")
                                    << (update == optim::UpdateTime::InStep ? "" : ", deferred")
                                    << ", stepped there " << stepped_there);
  const auto store = std::make_shared<host::Store>(device, host::StoreOptions{.budget_bytes = 256_MiB});
  // One after the other: both run in regions of the same names.
  const auto norms_of = [&](ThereNet& some, optim::Optimizer& optimizer) {
    std::vector<float> norms;
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 1 + i % 3; ++k) some.pass(10 * i + k, recomputes);
      norms.push_back(optimizer.gradient_norm().item<float>());
      clipped_step(optimizer);
    }
    return norms;
  };
  ThereNet plain(5, device, dtype);
  optim::AdamW here(plain.parameters(), {.lr = 1e-2});
  const std::vector<float> norms = norms_of(plain, here);
  ThereNet net(5, device, dtype);
  const auto optimizer = optimizer_of(net, store, send_away(net, store, shares), update, stepped_there);
  EXPECT_EQ(norms_of(net, *optimizer), norms);
  expect_same_weights(*optimizer, plain);
}

// Updated in the backward, against in step(): in steps of one to three passes, with states, weights and
// gradients here, there, or some here and some there.
inline void expect_bits_of_updates_in_step(at::Device device, at::ScalarType dtype, double on_host,
                                           optim::HostShares shares, double stepped_there, bool recomputes) {
  SCOPED_TRACE(::testing::Message() << dtype << ", states " << on_host << ", weights " << shares.weights
                                    << ", gradients " << shares.gradients << ", stepped there "
                                    << stepped_there << (recomputes ? ", recomputed" : ""));
  const auto store = std::make_shared<host::Store>(device, host::StoreOptions{.budget_bytes = 256_MiB});
  const auto norms_of = [&](ThereNet& some, optim::Optimizer& optimizer, bool in_backward) {
    std::vector<float> norms;
    for (int i = 0; i < 4; ++i) {
      const int passes = 1 + i % 3;
      for (int k = 0; k < passes; ++k) {
        if (k + 1 == passes) optimizer.last_pass(1e-2);
        some.pass(10 * i + k, recomputes);
      }
      for (const at::Tensor& parameter : some.parameters())
        EXPECT_NE(parameter.grad().defined(), in_backward);
      norms.push_back(optimizer.gradient_norm().item<float>());
      optimizer.step(1e-2);
      optimizer.zero_grad();
    }
    return norms;
  };
  ThereNet plain(5, device, dtype);
  optim::AdamW here(plain.parameters(), {.lr = 1e-2});
  const std::vector<float> norms = norms_of(plain, here, false);
  ThereNet net(5, device, dtype);
  const bool any_there = shares.weights > 0 || shares.gradients > 0;
  optim::AdamW optimizer(net.parameters(),
                         {.placement = {.on_host = on_host,
                                        .store = store,
                                        .update = optim::UpdateTime::InBackward,
                                        .parameters = any_there ? send_away(net, store, shares) : nullptr,
                                        .stepped_there = stepped_there}});
  EXPECT_EQ(norms_of(net, optimizer, true), norms);
  expect_same_weights(optimizer, plain);
}

inline void expect_bits_of_updates_in_step(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool recomputes : {false, true})
      for (const double stepped_there : {0.0, 0.5}) {
        if (stepped_there == 0) expect_bits_of_updates_in_step(device, dtype, 0, {}, 0, recomputes);
        for (const optim::HostShares shares : {optim::HostShares{}, {1, 1}, {0.5, 0.5}})
          expect_bits_of_updates_in_step(device, dtype, 1, shares, stepped_there, recomputes);
      }
}

inline void expect_bits_of_parameters_that_stay(at::Device device) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const optim::HostShares shares : {optim::HostShares{1, 1}, {1, 0}, {0, 1}, {0.5, 0.5}, {0.3, 0.7}})
      for (const bool recomputes : {false, true})
        for (const auto update : {optim::UpdateTime::InStep, optim::UpdateTime::BeforeForward})
          for (const double stepped_there : {0.0, 0.5, 1.0})
            expect_bits_of_parameters_that_stay(device, dtype, shares, recomputes, update, stepped_there);
}

}  // namespace snug::testing
