// Optimizers of torch's, and of anybody's, whose states wait on the host between steps.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/store.h"
#include "snug/memory/tracker.h"
#include "snug/precision/grad_scaler.h"
#include "snug/session/plan_step.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"
#include "tests/support/temporary_folder.h"

namespace snug::parked_states {
namespace {

using torch::optim::Optimizer;

// Weights of more elements than stay anyway, biases of fewer.
struct Net {
  static constexpr std::int64_t kWidth = 160, kLayers = 6;
  static constexpr std::uint64_t kWeightBytes = 4 * kWidth * kWidth;

  explicit Net(c10::Device device = c10::kCPU, at::ScalarType dtype = at::kFloat,
               std::int64_t layers = kLayers) {
    at::manual_seed(3);
    const auto options = at::TensorOptions(dtype).device(device);
    for (int i = 0; i < layers; ++i) {
      parameters.push_back(at::randn({kWidth, kWidth}, options).mul_(0.1).requires_grad_());
      parameters.push_back(at::randn({kWidth}, options).requires_grad_());
    }
  }
  // The first weight has a gradient in every third step.
  void backward(int step, std::int64_t rows = 64) {
    at::manual_seed(100 + step);
    at::Tensor x = at::randn({rows, kWidth}, parameters[0].options().requires_grad(false));
    for (std::size_t i = step % 3 == 0 ? 0 : 2; i < parameters.size(); i += 2)
      x = region("l" + std::to_string(i),
                 [&] { return at::gelu(at::addmm(parameters[i + 1], x, parameters[i])); });
    region("loss", [&] { return x.to(at::kFloat).pow(2).mean(); }).backward();
  }
  std::vector<at::Tensor> parameters;
};

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

template <class Torchs, class Options>
Make maker(Options options) {
  return [=](std::vector<at::Tensor> parameters) {
    return std::make_unique<Torchs>(std::move(parameters), options);
  };
}

Make adamw(bool amsgrad = false) {
  return maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).amsgrad(amsgrad));
}

plan::Hardware linked() {
  plan::Hardware hardware = plan::preset("cpu");
  hardware.to_host_rate = hardware.to_device_rate = hardware.both_ways_rate = 1e10;
  return hardware;
}

std::vector<at::Tensor> states_of(Optimizer& optimizer) {
  const AnyOptimizer any(optimizer);
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : any.parameters)
    for (const OptimizerState& state : any.states(parameter))
      if (state.tensor.defined()) all.push_back(state.tensor);
  return all;
}

void expect_same(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  ASSERT_EQ(some.size(), others.size());
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_TRUE(at::equal(some[i], others[i])) << i;
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.detach().clone());
  return all;
}

class ParkedStates : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  SessionOptions options(std::uint64_t budget = 1_GiB) {
    return {.budget_bytes = budget, .hardware = linked(), .say = [this](const std::string& text) {
              said += text + "\n";
            }};
  }
  static void step(Net& net, Optimizer& optimizer, Session& session, int number) {
    net.backward(number);
    session.step(optimizer);
    optimizer.zero_grad();
    session.end_step();
  }
  // Parameters, then states.
  static std::vector<at::Tensor> plain(const Make& make, at::ScalarType dtype, int steps,
                                       std::int64_t layers = Net::kLayers) {
    Net net(c10::kCPU, dtype, layers);
    const auto optimizer = make(net.parameters);
    for (int i = 0; i < steps; ++i) {
      net.backward(i);
      optimizer->step();
      optimizer->zero_grad();
    }
    return results(net, *optimizer);
  }
  static std::vector<at::Tensor> results(const Net& net, Optimizer& optimizer) {
    std::vector<at::Tensor> all = net.parameters;
    for (const at::Tensor& state : states_of(optimizer)) all.push_back(state);
    return copies(all);
  }
  std::string said;
};

TEST_F(ParkedStates, TheBitsAreThoseOfStatesThatStay) {
  constexpr int kSteps = 20;
  using namespace torch::optim;
  const std::vector<Make> makes = {
      adamw(),
      adamw(/*amsgrad=*/true),
      maker<Adam>(AdamOptions(1e-2).weight_decay(0.1).amsgrad(true)),
      maker<Adam>(AdamOptions(1e-2)),
      maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)),
      maker<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5)),
      maker<Adagrad>(AdagradOptions(1e-2)),
  };
  for (std::size_t kind = 0; kind < makes.size(); ++kind)
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << kind << " " << dtype);
      const auto expected = plain(makes[kind], dtype, kSteps);
      Net net(c10::kCPU, dtype);
      const auto optimizer = makes[kind](net.parameters);
      Session session(net.parameters, options());
      session.park(*optimizer);
      for (int i = 0; i < kSteps; ++i) step(net, *optimizer, session, i);
      EXPECT_GT(session.measured().host_bytes, 0u);
      EXPECT_ANY_THROW(results(net, *optimizer));
      session.unpark(*optimizer);
      expect_same(results(net, *optimizer), expected);
    }
}

TEST_F(ParkedStates, BetweenStepsTheirMemoryIsFree) {
  const auto live_between_steps = [&](bool parks) {
    memory::Tracker tracker;
    Net net;
    const auto optimizer = adamw()(net.parameters);
    Session session(net.parameters, options());
    for (int i = 0; i < 3; ++i) {
      net.backward(0);
      parks ? session.step(*optimizer) : static_cast<void>(optimizer->step());
      optimizer->zero_grad();
      session.end_step();
    }
    if (parks) {
      EXPECT_EQ(session.account().host()->arena().used_bytes(), 2 * Net::kLayers * Net::kWeightBytes);
    }
    return tracker.live_bytes();
  };
  EXPECT_EQ(live_between_steps(false) - live_between_steps(true), 2 * Net::kLayers * Net::kWeightBytes);
}

TEST_F(ParkedStates, TheFirstParkedStepSaysWhatItCosts) {
  Net net;
  const auto optimizer = adamw()(net.parameters);
  Session session(net.parameters, options());
  step(net, *optimizer, session, 0);
  // 2 x 6 x 102,400 bytes, there and back, at 1e10 bytes/s for both directions together, of which an update
  // has 93 %
  EXPECT_EQ(said,
            "states of the optimizer wait on the host between steps: 1.2 MiB, 0.000264 s of a step to "
            "the device and back\n");
  EXPECT_GE(session.measured().host_bytes, 2 * Net::kLayers * Net::kWeightBytes);
  step(net, *optimizer, session, 1);
  EXPECT_EQ(said.find("wait on the host", said.find('\n')), std::string::npos) << said;
}

Step a_step() {
  return {.on_meta = [](const Account& account, const plan::Setting&) -> std::function<void()> {
    const auto net = std::make_shared<Net>(c10::kMeta);
    account.adopt(net->parameters, trace::Category::Parameter);
    const std::shared_ptr<Optimizer> optimizer = adamw()(net->parameters);
    return [=] {
      net->backward(0, /*rows=*/1024);
      account.step(*optimizer);
      optimizer->zero_grad();
    };
  }};
}

TEST_F(ParkedStates, APlanMadeOnMetaIsWhatTheRunNeeds) {
  const std::uint64_t plain =
      plan_step(a_step(), {.budget_bytes = 1_GiB, .hardware = linked()}).plan.plain.peak_bytes;
  for (const double share : {1.1, 0.8, 0.7}) {
    const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(plain));
    const PlannedStep planned = plan_step(a_step(), {.budget_bytes = budget, .hardware = linked()});
    ASSERT_TRUE(planned.decision.fits) << share;
    EXPECT_GE(planned.plan.predicted.host_bytes, 2 * Net::kLayers * Net::kWeightBytes);
    Net net;
    const auto optimizer = adamw()(net.parameters);
    SessionOptions given = options(budget);
    given.plan = planned.plan;
    given.prove = false;
    Session session(net.parameters, given);
    for (int i = 0; i < 4; ++i) {
      net.backward(0, /*rows=*/1024);
      session.step(*optimizer);
      optimizer->zero_grad();
      session.end_step();
    }
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_EQ(session.plans_made(), 0) << said;
    EXPECT_EQ(session.last_peak_bytes(), planned.plan.predicted.tensor_bytes) << share << said;
    EXPECT_LE(session.measured().host_bytes, planned.plan.predicted.host_bytes);
  }
}

TEST_F(ParkedStates, WithoutALinkThereIsNoPlanThatParks) {
  EXPECT_NE(testing::message_of<Error>([&] {
              plan_step(a_step(), {.budget_bytes = 1_GiB, .hardware = plan::preset("cpu")});
            }).find("this step keeps states on the host: that needs a link"),
            std::string::npos);
}

// At 8 rows the update is where memory is highest: three parts of the states are there.
TEST_F(ParkedStates, APredictionIsWhatIsMeasured) {
  for (const std::int64_t rows : {8, 64, 1024}) {
    const Step step{.on_meta = [rows](const Account& account, const plan::Setting&) -> std::function<void()> {
      const auto net = std::make_shared<Net>(c10::kMeta);
      account.adopt(net->parameters, trace::Category::Parameter);
      const std::shared_ptr<Optimizer> optimizer = adamw()(net->parameters);
      return [=] {
        net->backward(0, rows);
        account.step(*optimizer);
        optimizer->zero_grad();
      };
    }};
    const Prediction predicted = predict(step, {});
    EXPECT_EQ(predicted.streamed_bytes, 2 * Net::kLayers * Net::kWeightBytes);
    Net net;
    const auto optimizer = adamw()(net.parameters);
    SessionOptions watching = options();
    watching.predicted = predicted;
    watching.by_hand = ByHand{};
    Session session(net.parameters, watching);
    for (int i = 0; i < 3; ++i) {
      net.backward(0, rows);
      session.step(*optimizer);
      optimizer->zero_grad();
      session.end_step();
    }
    // In an update torch turns a number into a tensor on the CPU, whatever the device is: 8 bytes, and 4.
    const std::uint64_t numbers = rows < 1024 ? 12 : 0;
    EXPECT_EQ(session.measured().peak.total, predicted.peak.total + numbers) << rows;
    EXPECT_EQ(session.measured().host_bytes, predicted.host_bytes) << rows;
  }
}

// What the states took is room for activations.
TEST_F(ParkedStates, APlanMadeFromARunKnowsOfThem) {
  const auto peak_of = [&](bool parks) {
    said.clear();
    Net net;
    const auto optimizer = adamw()(net.parameters);
    Session session(net.parameters, options());
    for (int i = 0; i < 6; ++i) {
      net.backward(0, /*rows=*/2048);
      parks ? session.step(*optimizer) : static_cast<void>(optimizer->step());
      optimizer->zero_grad();
      session.end_step();
    }
    EXPECT_TRUE(session.is_as_planned()) << said;
    EXPECT_EQ(session.plans_made(), 1) << said;
    EXPECT_EQ(session.predicted_bytes(), session.last_peak_bytes()) << said;
    if (parks) {
      EXPECT_GE(session.plan()->predicted.host_bytes, 2 * Net::kLayers * Net::kWeightBytes);
    }
    return session.last_peak_bytes();
  };
  EXPECT_EQ(peak_of(false) - peak_of(true), 2 * Net::kLayers * Net::kWeightBytes);
}

TEST_F(ParkedStates, AStateThatIsReadMeanwhileNamesItself) {
  Net net;
  const auto optimizer = adamw()(net.parameters);
  Session session(net.parameters, options());
  step(net, *optimizer, session, 0);
  const std::string expected = "the state \"exp_avg_sq\" of parameter 2 [160, 160] is on the host";
  const at::Tensor state = AnyOptimizer(*optimizer).states(net.parameters[2])[1].tensor;
  EXPECT_NE(testing::message_of<c10::Error>([&] { state.sum(); }).find(expected), std::string::npos);
  net.backward(1);
  EXPECT_NE(testing::message_of<c10::Error>([&] { optimizer->step(); }).find("Session::step()"),
            std::string::npos);
}

TEST_F(ParkedStates, SavingThrowsUntilTheyAreUnparked) {
  Net net;
  const auto optimizer = adamw()(net.parameters);
  Session session(net.parameters, options());
  for (int i = 0; i < 3; ++i) step(net, *optimizer, session, i);
  std::stringstream file;
  EXPECT_NE(testing::message_of<c10::Error>([&] { torch::save(*optimizer, file); }).find("Session::unpark()"),
            std::string::npos);
  session.unpark(*optimizer);
  std::stringstream whole;
  torch::save(*optimizer, whole);
  const auto expected = results(net, *optimizer);
  step(net, *optimizer, session, 3);
  EXPECT_ANY_THROW(results(net, *optimizer));

  // Into one that is parked.
  torch::load(*optimizer, whole);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net.parameters.size(); ++i) net.parameters[i].copy_(expected[i]);
  }
  session.park(*optimizer);
  EXPECT_EQ(session.account().host()->arena().used_bytes(), 2 * Net::kLayers * Net::kWeightBytes);
  for (int i = 3; i < 6; ++i) step(net, *optimizer, session, i);
  session.unpark(*optimizer);
  expect_same(results(net, *optimizer), plain(adamw(), at::kFloat, 6));
}

// Where the device has no room for all of them; a channels-last weight has states that are not contiguous.
TEST_F(ParkedStates, TheyCanBeReadAndSavedWhereTheyWait) {
  const auto results_of = [&](std::stringstream* file) {
    at::manual_seed(3);
    const std::vector<at::Tensor> parameters{
        at::randn({48, 48, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(),
        at::randn({160, 160}).requires_grad_()};
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
    memory::Tracker tracker;
    Session session(parameters, options());
    for (int i = 0; i < 4; ++i) {
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::randn_like(parameter);
      file ? session.step(optimizer) : static_cast<void>(optimizer.step());
      session.end_step();
      if (!file || i < 2) continue;
      const std::uint64_t before = tracker.live_bytes();
      session.unpark(optimizer, ReadStates::OnHost);
      EXPECT_EQ(tracker.live_bytes(), before);
      file->str("");
      torch::save(optimizer, *file);
      if (i == 2) session.park(optimizer);
    }
    std::vector<at::Tensor> all = copies(states_of(optimizer));
    all.insert(all.end(), parameters.begin(), parameters.end());
    if (!file) return all;
    torch::optim::AdamW loaded(parameters, torch::optim::AdamWOptions(1e-2));
    torch::load(loaded, *file);
    expect_same(states_of(loaded), {all.begin(), all.end() - 2});
    EXPECT_TRUE(states_of(optimizer)[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    return all;
  };
  std::stringstream file;
  expect_same(results_of(&file), results_of(nullptr));
}

TEST_F(ParkedStates, WhenTheSessionEndsTheyComeBack) {
  constexpr std::int64_t kLayers = 16;
  const auto expected = plain(adamw(), at::kFloat, 6, kLayers);
  Net net(c10::kCPU, at::kFloat, kLayers);
  const auto optimizer = adamw()(net.parameters);
  {
    // Of weights and gradients, and some states: weights and all states are 48.
    Session session(net.parameters, options(45 * Net::kWeightBytes));
    for (int i = 0; i < 4; ++i) step(net, *optimizer, session, i);
    EXPECT_THROW(session.unpark(*optimizer), c10::OutOfMemoryError);
    session.unpark(*optimizer, ReadStates::OnHost);
    EXPECT_TRUE(states_of(*optimizer)[0].isfinite().all().item<bool>());
  }
  for (int i = 4; i < 6; ++i) {
    net.backward(i);
    optimizer->step();
    optimizer->zero_grad();
  }
  expect_same(results(net, *optimizer), expected);
}

TEST_F(ParkedStates, TwoOptimizersOfWhichOneGoesFirst) {
  Net net;
  std::vector<at::Tensor> some(net.parameters.begin(), net.parameters.begin() + 6),
      others(net.parameters.begin() + 6, net.parameters.end());
  const auto kept = adamw()(some);
  auto gone = maker<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))(others);
  Session session(net.parameters, options());
  const auto used = [&] { return session.account().host()->arena().used_bytes(); };
  for (int i = 0; i < 3; ++i) {
    net.backward(i);
    session.step(*kept);
    session.step(*gone);
    kept->zero_grad();
    gone->zero_grad();
    session.end_step();
  }
  EXPECT_EQ(used(), 9 * Net::kWeightBytes);
  gone.reset();
  step(net, *kept, session, 3);
  EXPECT_EQ(used(), 6 * Net::kWeightBytes);
}

// Between two steps somebody steps by himself; then the first weight has no gradient.
TEST_F(ParkedStates, UnparkedTheyAreTorchsUntilTheNextStep) {
  const auto expected = plain(adamw(), at::kFloat, 5);
  for (const auto where : {ReadStates::OnDevice, ReadStates::OnHost}) {
    Net net;
    const auto optimizer = adamw()(net.parameters);
    Session session(net.parameters, options());
    for (int i = 0; i < 3; ++i) step(net, *optimizer, session, i);
    net.backward(3);
    session.unpark(*optimizer, where);
    if (where == ReadStates::OnDevice)
      optimizer->step();
    else
      session.step(*optimizer);
    optimizer->zero_grad();
    session.unpark(*optimizer, where);
    step(net, *optimizer, session, 4);
    for (const at::Tensor& state : states_of(*optimizer))
      if (state.numel() > Net::kWidth) {
        EXPECT_ANY_THROW(state.sum());
      }
    session.unpark(*optimizer);
    expect_same(results(net, *optimizer), expected);
  }
}

// Somebody's own: it replaces its states or writes to them in secret, and may throw.
struct OwnMomentum {
  std::vector<at::Tensor> parameters, states = std::vector<at::Tensor>(parameters.size());
  bool replaces = true;
  int throws_at = -1, steps = 0;

  void step() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].grad().defined()) continue;
      if (steps++ == throws_at) throw std::runtime_error("no");
      if (!states[i].defined())
        states[i] = parameters[i].grad().clone();
      else if (replaces)
        states[i] = states[i] * 0.9 + parameters[i].grad();
      else
        states[i].data().mul_(0.9).add_(parameters[i].grad());  // which no version tells
      parameters[i].sub_(states[i], 0.1);
    }
  }
  AnyOptimizer any() {
    AnyOptimizer any;
    any.parameters = parameters;
    any.states = [this](const at::Tensor& parameter) -> std::vector<OptimizerState> {
      for (std::size_t i = 0; i < parameters.size(); ++i)
        if (parameters[i].is_same(parameter)) return {{"momentum", states[i]}};
      return {};
    };
    any.step = [this] { step(); };
    any.is_by_parameter = true;
    return any;
  }
};

TEST_F(ParkedStates, AnOptimizerOfOnesOwnMayReplaceItsStatesOrWriteToThemInSecret) {
  const auto train = [&](bool parks, bool replaces) {
    Net net;
    OwnMomentum optimizer{.parameters = net.parameters, .replaces = replaces};
    Session session(net.parameters, options());
    for (int i = 0; i < 4; ++i) {
      net.backward(0);
      parks ? session.step(optimizer.any()) : optimizer.step();
      for (at::Tensor& parameter : net.parameters) parameter.mutable_grad().reset();
      session.end_step();
    }
    if (parks) {
      EXPECT_EQ(session.account().host()->arena().used_bytes(), Net::kLayers * Net::kWeightBytes);
    }
    return copies(net.parameters);
  };
  for (const bool replaces : {true, false}) expect_same(train(true, replaces), train(false, replaces));
}

TEST_F(ParkedStates, AStepThatThrowsLeavesThemParkedAndGradientsWhereTheyWere) {
  Net net;
  OwnMomentum optimizer{net.parameters};
  Session session(net.parameters, options());
  for (int i = 0; i < 2; ++i) {
    net.backward(0);
    session.step(optimizer.any());
  }
  const std::vector<at::Tensor> states = optimizer.states;
  optimizer.throws_at = optimizer.steps + 4;
  EXPECT_THROW(session.step(optimizer.any()), std::runtime_error);
  for (const at::Tensor& parameter : net.parameters) EXPECT_TRUE(parameter.grad().defined());
  for (std::size_t i = 0; i < states.size(); i += 2) EXPECT_ANY_THROW(optimizer.states[i].sum().item()) << i;
  optimizer.throws_at = -1;
  session.step(optimizer.any());
  session.unpark(optimizer.any());
  for (const at::Tensor& state : optimizer.states) EXPECT_TRUE(state.isfinite().all().item<bool>());
}

TEST_F(ParkedStates, AGradScalerTakesTheStep) {
  const auto train = [&](bool parks) {
    Net net;
    const auto optimizer = adamw()(net.parameters);
    Session session(net.parameters, options());
    AnyOptimizer parked(*optimizer);
    parked.step = [&] { session.step(*optimizer); };
    GradScaler scaler(at::kCPU);
    for (int i = 0; i < 4; ++i) {
      net.backward(i);
      if (i == 1) net.parameters[2].mutable_grad().fill_(std::numeric_limits<float>::infinity());
      EXPECT_EQ(parks ? scaler.step(parked) : scaler.step(*optimizer), i != 1);
      scaler.update();
      optimizer->zero_grad();
      session.end_step();
    }
    if (parks) {
      EXPECT_ANY_THROW(results(net, *optimizer));
    }
    return copies(net.parameters);
  };
  expect_same(train(true), train(false));
}

struct Subclass : torch::optim::AdamW {
  using AdamW::AdamW;
  int calls = 0;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++calls;
    return AdamW::step(closure);
  }
};

struct Unknown : Optimizer {
  explicit Unknown(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure = nullptr) override { return {}; }
};

TEST_F(ParkedStates, WhatIsNotKnownIsSteppedWholeOrRefusedByName) {
  Net net;
  Session session(net.parameters, options());
  Subclass subclass(net.parameters, torch::optim::AdamWOptions(1e-2));
  for (int i = 0; i < 4; ++i) step(net, subclass, session, i);
  EXPECT_EQ(subclass.calls, 4);
  session.unpark(subclass);
  expect_same(results(net, subclass), plain(adamw(), at::kFloat, 4));
  torch::optim::LBFGS lbfgs(net.parameters);
  EXPECT_NE(testing::message_of<Error>([&] { session.step(lbfgs); }).find("the states of LBFGS"),
            std::string::npos);
  Unknown unknown(net.parameters);
  EXPECT_NE(testing::message_of<Error>([&] { session.step(unknown); }).find("Unknown are not known"),
            std::string::npos);
}

TEST_F(ParkedStates, OneThatSomebodyHasAnAliasOfStays) {
  Net net;
  const auto optimizer = adamw()(net.parameters);
  Session session(net.parameters, options());
  step(net, *optimizer, session, 0);
  session.unpark(*optimizer);
  const at::Tensor alias = states_of(*optimizer)[0].view({-1});
  for (int i = 0; i < 2; ++i) step(net, *optimizer, session, 0);
  EXPECT_TRUE(at::equal(alias, states_of(*optimizer)[0].view({-1})));
  EXPECT_ANY_THROW(states_of(*optimizer)[1].sum());
}

TEST_F(ParkedStates, WhatFindsNoRoomOnTheHostStaysAndIsSaid) {
  const auto expected = plain(adamw(), at::kFloat, 4);
  const auto train = [&](SessionOptions some) {
    said.clear();
    Net net;
    const auto optimizer = adamw()(net.parameters);
    Session session(net.parameters, some);
    for (int i = 0; i < 4; ++i) step(net, *optimizer, session, i);
    session.unpark(*optimizer);
    expect_same(results(net, *optimizer), expected);
    return session.measured().host_bytes;
  };
  SessionOptions none = options();
  none.host_budget_bytes = 0;
  EXPECT_EQ(train(none), 0u);
  EXPECT_NE(said.find("states stay on the device: `host_budget`"), std::string::npos) << said;
  SessionOptions unlinked = options();
  unlinked.hardware = plan::preset("cpu");
  EXPECT_EQ(train(unlinked), 0u);
  EXPECT_NE(said.find("states stay on the device: no rate of a link"), std::string::npos) << said;
  SessionOptions small = options();
  small.host_budget_bytes = 512_KiB;
  EXPECT_LE(train(small), 512_KiB);
  EXPECT_NE(said.find("states that find no room on the host stay on the device"), std::string::npos) << said;
}

}  // namespace
}  // namespace snug::parked_states
