// What runs in no region.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "snug/tape/checkpoint.h"
#include "snug/tape/region.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

// Glue, two layers, glue between them, a head and a loss.
struct Model {
  Model() {
    at::manual_seed(5);
    for (at::Tensor& weight : weights) weight = at::randn({8, 8}).requires_grad_();
    batch = at::randn({16, 8});
  }
  at::Tensor loss() {
    at::Tensor h = at::silu(at::mm(batch, weights[0]));
    h = region("first", [&] { return at::tanh(at::mm(h, weights[1])); });
    h = at::exp(h * 0.1) + h;
    h = region("second", [&] { return at::sigmoid(at::mm(h, weights[2])); });
    return at::log_softmax(at::mm(h, weights[3]), -1).pow(2).mean();
  }
  std::vector<at::Tensor> gradients() {
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
    loss().backward();
    std::vector<at::Tensor> all;
    for (const at::Tensor& weight : weights) all.push_back(weight.grad().clone());
    return all;
  }
  std::array<at::Tensor, 4> weights;
  at::Tensor batch;
};

class RestTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(live_values(), 0) << "values are left"; }
  Model model;
};

TEST_F(RestTest, EveryStretchBetweenRegionsIsOne) {
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  for (int i = 0; i < 2; ++i) {
    model.gradients();
    EXPECT_EQ(names(recording.take_tapes()), (Names{"rest", "first", "rest#2", "second", "rest#3"}));
  }
  EXPECT_GT(recording.totals().at("rest#2").dropped_bytes, 0u);
}

TEST_F(RestTest, GradientsAreTheSameBitsWhateverBecomesOfIt) {
  const auto plain = model.gradients();
  for (const auto& fates : {Fates::keep(), Fates::recompute(), Fates::cheap(), Fates::offload()})
    for (const bool prove : {true, false}) {
      Recording recording(fates, {.prove = prove, .rest = true});
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(model.gradients(), plain));
    }
}

TEST_F(RestTest, IsNotRecordedUnlessItIsAskedFor) {
  Recording recording(Fates::recompute(), {.describe = true});
  model.gradients();
  EXPECT_EQ(names(recording.take_tapes()), (Names{"first", "second"}));
  at::Tensor y = at::exp(model.weights[0]);
  EXPECT_EQ(live_values(), 0);
}

TEST_F(RestTest, WhatAutogradDoesNotFollowBeginsNothing) {
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  at::Tensor loss = model.loss();
  loss.backward();
  recording.take_tapes();
  loss.item<float>();
  at::randn({4}).exp();
  {
    at::NoGradGuard no_grad;
    model.loss();                                                // an evaluation
    for (at::Tensor& weight : model.weights) weight.mul_(0.99);  // an optimizer
  }
  EXPECT_EQ(names(recording.take_tapes()), Names{});
}

TEST_F(RestTest, NoGradInBetweenIsPartOfIt) {
  const auto run = [&] {
    for (at::Tensor& weight : model.weights) weight.mutable_grad().reset();
    at::Tensor h = at::exp(at::mm(model.batch, model.weights[0]));
    at::Tensor mask;
    {
      at::NoGradGuard no_grad;
      mask = h.gt(1).to(at::kFloat);
    }
    (h * mask).sum().backward();
    return std::vector<at::Tensor>{model.weights[0].grad().clone()};
  };
  const auto plain = run();
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(run(), plain));
    EXPECT_EQ(names(recording.take_tapes()), Names{"rest"});
  }
}

TEST_F(RestTest, AForwardThatThrowsInItEndsIt) {
  const auto plain = model.gradients();
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  EXPECT_ANY_THROW(at::mm(at::exp(model.weights[0]), at::ones({3, 3})));
  EXPECT_EQ(live_values(), 0);
  EXPECT_TRUE(same_bits(model.gradients(), plain));
  const Names all = names(recording.take_tapes());
  EXPECT_EQ(Names(all.end() - 5, all.end()), (Names{"rest", "first", "rest#2", "second", "rest#3"}));
}

TEST_F(RestTest, OneThatABackwardOnAnotherThreadEndsIsLeft) {
  const auto plain = model.gradients();
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  for (int i = 0; i < 2; ++i) {
    for (at::Tensor& weight : model.weights) weight.mutable_grad().reset();
    at::Tensor loss = model.loss();
    const at::ThreadLocalState here;
    std::thread([&] {
      const at::ThreadLocalStateGuard same(here);  // as autograd's own threads have it
      loss.backward();
    }).join();
    loss.reset();
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(model.weights[k].grad(), plain[k]));
    EXPECT_EQ(names(recording.take_tapes()), (Names{"rest", "first", "rest#2", "second", "rest#3"}));
  }
}

TEST_F(RestTest, ACheckpointInItHasATapeOfItsOwn) {
  const auto run = [&] {
    model.weights[0].mutable_grad().reset();
    at::Tensor h = at::exp(model.weights[0]);
    h = checkpoint([&](const at::Tensor& h) { return at::tanh(h).sin(); }, h);
    h.pow(2).sum().backward();
    return std::vector<at::Tensor>{model.weights[0].grad().clone()};
  };
  const auto plain = run();
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  EXPECT_TRUE(same_bits(run(), plain));
  EXPECT_EQ(names(recording.take_tapes()), (Names{"rest", "rest#2"}));
}

// tape_test::nest is in corners_test.cpp.
TEST_F(RestTest, ARegionThatAKernelOpensIsPartOfIt) {
  const auto nest = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("tape_test::nest", "")
                        .typed<at::Tensor(const at::Tensor&)>();
  const auto run = [&] {
    model.weights[0].mutable_grad().reset();
    at::Tensor h = at::exp(model.weights[0]);
    (h * nest.call(h.detach())).sum().backward();
    return std::vector<at::Tensor>{model.weights[0].grad().clone()};
  };
  const auto plain = run();
  Recording recording(Fates::recompute(), {.describe = true, .rest = true});
  EXPECT_TRUE(same_bits(run(), plain));
  EXPECT_EQ(names(recording.take_tapes()), Names{"rest"});
}

TEST_F(RestTest, ARecordingThatEndsInItLeavesNothing) {
  at::Tensor loss;
  const auto plain = model.gradients();
  {
    Recording recording(Fates::recompute(), {.rest = true});
    for (at::Tensor& weight : model.weights) weight.mutable_grad().reset();
    loss = model.loss();
  }
  loss.backward();
  for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(model.weights[k].grad(), plain[k]));
  loss.reset();
}

}  // namespace
}  // namespace snug::tape
