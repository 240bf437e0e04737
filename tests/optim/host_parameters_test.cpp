// Weights and gradients on the host, in a loop of somebody's own: torch's modules and autograd, several
// passes.
#include "snug/optim/host_parameters.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "snug/base/error.h"
#include "snug/optim/sgd.h"
#include "tests/optim/there_net.h"
#include "tests/support/temporary_folder.h"

namespace snug::optim {
namespace {

using testing::clipped_step;
using testing::expect_same_weights;
using testing::message_of;
using testing::optimizer_of;
using testing::send_away;
using testing::ThereNet;

class HostParametersTest : public ::testing::Test {
 protected:
  const std::shared_ptr<host::Store> store_ =
      std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 256_MiB});
};

TEST_F(HostParametersTest, TheBitsAreThoseOfParametersThatStay) {
  testing::expect_bits_of_parameters_that_stay(at::kCPU);
}

TEST_F(HostParametersTest, UpdatesInTheBackwardHaveTheBitsOfThoseInStep) {
  testing::expect_bits_of_updates_in_step(at::kCPU);
}

TEST(UpdatesInTheBackward, AreTakenOnlyBeforeTheLastOneAndLeaveNothingToClip) {
  testing::ThereNet net(3);
  AdamW optimizer(net.parameters(), {.placement = {.update = UpdateTime::InBackward}});
  optimizer.last_pass(1e-2);
  net.pass(0);
  net.pass(1);
  EXPECT_NE(testing::message_of<Error>([&] { optimizer.step(1e-2); }).find("has a gradient again"),
            std::string::npos);
  optimizer.zero_grad();
  optimizer.last_pass(1e-2);
  net.pass(2);
  EXPECT_NE(testing::message_of<Error>([&] {
              optimizer.step(1e-2, {.factor = at::ones({})});
            }).find("cannot be clipped"),
            std::string::npos);
  optimizer.zero_grad();
  net.pass(3);  // nobody said that it is the last
  for (const at::Tensor& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
  optimizer.step(1e-2, {.factor = at::ones({})});
}

TEST(UpdatesInTheBackward, AreSeenByWhoeverReadsTheStates) {
  testing::ThereNet net(3);
  const auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
  AdamW optimizer(
      net.parameters(),
      {.placement = {.on_host = 1, .store = store, .update = UpdateTime::InBackward, .stepped_there = 1}});
  optimizer.last_pass(1e-2);
  net.pass(0);
  for (const StateTensor& state : optimizer.state())
    EXPECT_TRUE(state.tensor.ne(0).any().item<bool>()) << state.name << " of " << state.parameter;
}

// Of SGD without momentum in fp32 a gradient that is used at once is all there is, and it is on the device.
TEST_F(HostParametersTest, AnUpdateThatHasNothingOnTheHostIsTakenOnTheDevice) {
  for (const auto update : {UpdateTime::InBackward, UpdateTime::BeforeForward}) {
    ThereNet plain(3), net(3);
    Sgd here(plain.parameters(), {.lr = 1e-2});
    Sgd optimizer(
        net.parameters(),
        {.lr = 1e-2,
         .placement = {
             .on_host = 1, .store = store_, .update = update, .parameters = send_away(net, store_, {0, 1})}});
    const auto step = [&](ThereNet& some, Optimizer& by, int number) {
      by.last_pass(1e-2);
      some.pass(number);
      if (update != UpdateTime::InBackward)  // somebody's own: it was never sent
        some.layers[1]->weight.mutable_grad() = at::ones({ThereNet::kWidth, ThereNet::kWidth});
      by.step(1e-2);
      by.zero_grad();
    };
    for (int i = 0; i < 2; ++i) step(plain, here, i);
    for (int i = 0; i < 2; ++i) step(net, optimizer, i);
    expect_same_weights(optimizer, plain);
  }
}

TEST_F(HostParametersTest, TheyTakeTheHostsMemoryAndLeaveTheDevices) {
  ThereNet net(4);
  const auto there = send_away(net, store_, {0.5, 1});
  EXPECT_FALSE(there->has_weight(net.layers[0]->weight)) << "every second region, the first ones last";
  EXPECT_TRUE(there->has_weight(net.layers[1]->weight));
  EXPECT_FALSE(there->has_weight(net.layers[1]->bias)) << "too small";
  auto* const storage = net.layers[1]->weight.storage().unsafeGetStorageImpl();
  EXPECT_EQ(storage->_mutable_data_ptr_no_checks().get(), nullptr);
  constexpr std::uint64_t kWeight = ThereNet::kWidth * ThereNet::kWidth * sizeof(float);
  EXPECT_EQ(there->bytes(), 6 * kWeight);
  const auto loads = there->loads();
  ASSERT_EQ(loads.size(), 4u);
  EXPECT_EQ(loads[0].weight_bytes, 0u);
  EXPECT_EQ(loads[3].weight_bytes, kWeight);
  EXPECT_EQ(loads[3].gradient_bytes, kWeight);
}

TEST_F(HostParametersTest, WhatIsAwaySaysSo) {
  ThereNet net(3);
  const auto there = send_away(net, store_);
  EXPECT_NE(message_of<c10::Error>([&] {
              (net.layers[1]->weight + 1).sum();
            }).find("it is on the device while region \"there.1\" runs"),
            std::string::npos);
  const auto optimizer = optimizer_of(net, store_, there);
  net.pass(0);
  EXPECT_TRUE(net.layers[2]->weight.grad().defined());
  const std::string message =
      message_of<c10::Error>([&] { torch::nn::utils::clip_grad_norm_(net.parameters(), 1.0); });
  EXPECT_NE(message.find("this gradient of region \"there."), std::string::npos) << message;
  EXPECT_NE(message.find("gradient_norm()"), std::string::npos) << message;
}

TEST_F(HostParametersTest, AGradientThatSomebodyElseClearsIsGone) {
  ThereNet plain(3), net(3);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  net.pass(0);
  net.zero_grad();
  plain.pass(1);
  net.pass(1);
  clipped_step(here);
  clipped_step(*optimizer);
  expect_same_weights(*optimizer, plain);
}

TEST_F(HostParametersTest, ABackwardThatFailsLeavesNothingThatDisturbsTheNext) {
  ThereNet plain(4), net(4);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  const auto fail_in_the_middle = [](ThereNet& some) {
    at::Tensor x = at::ones({2, ThereNet::kWidth});
    for (std::size_t i = 0; i < some.layers.size(); ++i) {
      const hooks::RegionScope scope(ThereNet::region(i));
      x = some.layers[i]->forward(x);
      if (i == 1) x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
    }
    EXPECT_THROW(x.sum().backward(), std::runtime_error);
  };
  fail_in_the_middle(net);
  optimizer->zero_grad();
  for (int i = 0; i < 2; ++i) {
    plain.pass(i);
    net.pass(i);
  }
  clipped_step(here);
  clipped_step(*optimizer);
  expect_same_weights(*optimizer, plain);
}

TEST_F(HostParametersTest, RegionsMayRunInAnotherOrderOrNotAtAll) {
  ThereNet plain(4), net(4);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  const auto odd_pass = [](ThereNet& some) {
    at::Tensor x = at::ones({2, ThereNet::kWidth});
    for (const std::size_t i : {2, 0, 2, 3}) {
      const hooks::RegionScope scope(ThereNet::region(i));
      x = at::tanh(some.layers[i]->forward(x));
    }
    x.sum().backward();
  };
  for (int i = 0; i < 2; ++i) {
    odd_pass(plain);
    odd_pass(net);
    clipped_step(here);
    clipped_step(*optimizer);
  }
  expect_same_weights(*optimizer, plain);
}

TEST_F(HostParametersTest, EvaluationReadsTheWeightsAsTheyAre) {
  for (const auto update : {UpdateTime::InStep, UpdateTime::BeforeForward}) {
    ThereNet plain(3), net(3);
    AdamW here(plain.parameters(), {.lr = 1e-2});
    const auto optimizer = optimizer_of(net, store_, send_away(net, store_), update);
    plain.pass(3);
    net.pass(3);
    clipped_step(here);
    clipped_step(*optimizer);
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({1, ThereNet::kWidth});
    EXPECT_TRUE(at::equal(net.forward(x), plain.forward(x)));
  }
}

TEST_F(HostParametersTest, WhenTheyGoTheWeightsAreBack) {
  ThereNet plain(3), net(3);
  {
    const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
    net.pass(0);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(net.layers[i]->weight, plain.layers[i]->weight));
    EXPECT_FALSE(net.layers[i]->weight.grad().defined() &&
                 net.layers[i]->weight.grad().storage().nbytes() == 0);
  }
  const auto there = [&] {
    ThereNet short_lived(2);
    return send_away(short_lived, store_);
  }();  // the parameters went first
}

// A penalty on the weights, made before the forward: its gradient comes when the weight's own has been sent.
TEST_F(HostParametersTest, WhatIsAddedToAGradientAfterItWasSentIsNotLost) {
  const auto train = [](ThereNet& some, Optimizer& optimizer) {
    for (int step = 0; step < 2; ++step) {
      for (int k = 0; k < 2; ++k) {
        at::Tensor x = at::ones({2, ThereNet::kWidth});
        const at::Tensor penalty = some.layers[0]->weight.abs().sum();
        (some.forward(x).sum() + penalty).backward();
      }
      some.layers[0]->weight.mutable_grad().mul_(0.5);
      clipped_step(optimizer);
    }
  };
  ThereNet plain(3);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  train(plain, here);
  ThereNet net(3);
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_, {0, 1}));
  train(net, *optimizer);
  expect_same_weights(*optimizer, plain);
}

TEST_F(HostParametersTest, WhatIsWrittenToAWeightIsNotLost) {
  const auto train = [](ThereNet& some, Optimizer& optimizer) {
    const at::Tensor x = at::ones({2, ThereNet::kWidth});
    some.pass(0);
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    optimizer.weight(0).mul_(0.5);  // between passes, through the optimizer
    for (std::size_t i = 0; i < some.layers.size(); ++i) {
      const hooks::RegionScope scope(ThereNet::region(i));
      some.layers[i]->weight.clamp_(-0.01, 0.01);  // in its region
    }
    return some.forward(x);
  };
  ThereNet plain(3);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  const at::Tensor expected = train(plain, here);
  ThereNet net(3);
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  EXPECT_TRUE(at::equal(train(net, *optimizer), expected));
  expect_same_weights(*optimizer, plain);
}

// Whoever is told reads what was there before.
TEST_F(HostParametersTest, WhoReadsOnTheHostIsToldBeforeItIsWritten) {
  for (const auto update : {UpdateTime::InStep, UpdateTime::BeforeForward}) {
    ThereNet net(3);
    const auto there = send_away(net, store_);
    const auto optimizer = optimizer_of(net, store_, there, update);
    std::vector<at::Tensor> homes, before;
    for (const at::Tensor& parameter : net.parameters())
      if (there->has_weight(parameter)) homes.push_back(there->home_of_weight(parameter));
    ASSERT_EQ(homes.size(), 3u);
    const auto remember = [&] {
      before.clear();
      for (const at::Tensor& home : homes) before.push_back(home.clone());
    };
    std::vector<int> told(homes.size());
    optimizer->set_before_write([&](std::size_t i) {
      ASSERT_EQ(i % 2, 0u) << "biases stay";
      const bool is_first = told[i / 2]++ == 0;
      EXPECT_TRUE(!is_first || at::equal(homes[i / 2], before[i / 2]));
    });
    remember();
    net.pass(0);
    clipped_step(*optimizer);
    optimizer->finish();
    for (std::size_t i = 0; i < homes.size(); ++i) {
      EXPECT_GT(told[i], 0);
      optimizer->weight(2 * i);
      EXPECT_FALSE(at::equal(homes[i], before[i]));
    }
    told.assign(told.size(), 0);
    remember();
    {
      const at::NoGradGuard no_grad;
      const hooks::RegionScope scope(ThereNet::region(1));
      net.layers[1]->weight.add_(1);
    }
    optimizer->weight(2);
    EXPECT_EQ(told, (std::vector<int>{0, 1, 0})) << "by somebody who wrote to it on the device";
    optimizer->set_before_write(nullptr);
    net.pass(1);
    clipped_step(*optimizer);
    EXPECT_EQ(told, (std::vector<int>{0, 1, 0}));
  }
}

TEST_F(HostParametersTest, AGraphThatIsOlderThanAnUpdateIsRefusedAsEver) {
  ThereNet net(2);
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  net.pass(0);
  const at::Tensor loss = net.forward(at::ones({2, ThereNet::kWidth}).requires_grad_()).sum();
  optimizer->step();
  EXPECT_NE(message_of<c10::Error>([&] { loss.backward(); }).find("modified by an inplace operation"),
            std::string::npos);
}

TEST_F(HostParametersTest, ASecondOptimizerDoesNotSilenceTheFirst) {
  const auto train = [](ThereNet& some, Optimizer& optimizer) {
    some.pass(0);
    clipped_step(optimizer);
    at::Tensor x = at::ones({2, ThereNet::kWidth});
    const at::NoGradGuard no_grad;
    for (const std::size_t i : {4, 5, 3}) {  // far from where updates are asked for first
      const hooks::RegionScope scope(ThereNet::region(i));
      x = some.layers[i]->forward(x);
    }
    return x;
  };
  ThereNet plain(6);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  const at::Tensor expected = train(plain, here);
  ThereNet net(6);
  const auto there = send_away(net, store_);
  auto optimizer = optimizer_of(net, store_, there, UpdateTime::BeforeForward);
  optimizer =
      optimizer_of(net, store_, there, UpdateTime::BeforeForward);  // the old one goes after the new came
  EXPECT_TRUE(at::equal(train(net, *optimizer), expected));
}

TEST_F(HostParametersTest, TheNormIsThatOfGradientsAsSomebodyLeftThem) {
  ThereNet net(3);
  const auto optimizer = optimizer_of(net, store_, send_away(net, store_));
  net.pass(0);
  const double before = optimizer->gradient_norm().item<double>();
  for (at::Tensor& gradient : optimizer->gradients()) gradient.div_(4);
  EXPECT_NEAR(optimizer->gradient_norm().item<double>(), before / 4, 1e-4 * before);
}

TEST_F(HostParametersTest, AGradientThatSomebodyClearedStaysCleared) {
  ThereNet plain(3), net(3);
  const auto there = send_away(net, store_);
  const auto optimizer = optimizer_of(net, store_, there);
  net.pass(0);
  net.layers[0]->weight.mutable_grad().mul_(100);  // sent, and still here
  for (at::Tensor& parameter : net.parameters()) parameter.mutable_grad().reset();
  optimizer->zero_grad();
  net.pass(1);
  plain.pass(1);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  clipped_step(here);
  clipped_step(*optimizer);
  expect_same_weights(*optimizer, plain);
}

TEST_F(HostParametersTest, BadInputIsNamed) {
  ThereNet net(2);
  EXPECT_NE(message_of<Error>([&] {
              HostParameters(at::kCPU, nullptr, {1, 1});
            }).find("none was given"),
            std::string::npos);
  EXPECT_NE(message_of<Error>([&] {
              HostParameters(at::kCPU, store_, {1.5, 1});
            }).find("between 0 and 1"),
            std::string::npos);
  HostParameters there(at::kCPU, store_, {1, 0});
  there.add("a", net.layers[0]->parameters());
  EXPECT_NE(message_of<Error>([&] { there.add("a", net.layers[0]->parameters()); }).find("given twice"),
            std::string::npos);
  there.add("b", {});
  EXPECT_NE(message_of<Error>([&] { there.add("a", {}); }).find("and others since"), std::string::npos);
  const at::Tensor view = at::ones({3, ThereNet::kWidth, ThereNet::kWidth})[1].requires_grad_();
  EXPECT_NE(message_of<Error>([&] { there.add("c", {view}); }).find("is a view"), std::string::npos);
  const auto small = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_KiB});
  EXPECT_NE(message_of<Error>([&] {
              HostParameters(at::kCPU, small, {1, 1}).add("d", net.layers[1]->parameters());
            }).find("host"),
            std::string::npos);
}

}  // namespace
}  // namespace snug::optim
