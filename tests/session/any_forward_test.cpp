// Forwards as people write them, under a Session: layers that are shared, passes that differ, experts that
// are called now and then, and what runs in no region.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "snug/base/bytes.h"
#include "snug/session/plan_step.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"

namespace snug {
namespace {

constexpr std::int64_t kFeatures = 64, kRows = 256;

std::vector<at::Tensor> weights_on(c10::Device device, int count) {
  at::manual_seed(3);
  std::vector<at::Tensor> weights;
  for (int i = 0; i < count; ++i)
    weights.push_back(
        at::randn({kFeatures, kFeatures}, at::TensorOptions(device)).mul_(0.1).requires_grad_());
  return weights;
}

at::Tensor layer(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor h = at::gelu(at::mm(x, weight));
  return at::tanh(h) * at::sigmoid(h) + x;
}

// All passes of a step: forwards and backwards, no optimizer.
using Passes = std::function<void(const std::vector<at::Tensor>& weights, c10::Device device)>;

at::Tensor batch(c10::Device device, std::int64_t rows = kRows) {
  return at::full({rows, kFeatures}, 0.5, at::TensorOptions(device));
}

void drop_gradients(std::vector<at::Tensor>& weights) {
  for (at::Tensor& weight : weights) weight.mutable_grad().reset();
}

// For this share of what the step needs when all is kept.
PlannedStep planned(const Passes& step, int weights, double share) {
  const Step on_meta{.on_meta = [&](const Account&, const plan::Setting&) -> std::function<void()> {
    const auto model = std::make_shared<std::vector<at::Tensor>>(weights_on(c10::kMeta, weights));
    return [model, &step] {
      step(*model, c10::kMeta);
      drop_gradients(*model);
    };
  }};
  const plan::Hardware cpu = plan::preset("cpu");
  const PlannedStep plain = plan_step(on_meta, {.budget_bytes = 1_GiB, .hardware = cpu});
  const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(plain.plan.plain.peak_bytes));
  return plan_step(on_meta, {.budget_bytes = budget, .hardware = cpu});
}

std::vector<at::Tensor> gradients(const Passes& step, std::vector<at::Tensor>& weights) {
  drop_gradients(weights);
  step(weights, c10::kCPU);
  std::vector<at::Tensor> all;
  for (const at::Tensor& weight : weights) all.push_back(weight.grad());
  return all;
}

// Three steps under the plan: the same bits, and to the byte the memory that was predicted.
void expect_as_planned(const Passes& step, int count, double share) {
  at::set_num_threads(1);
  const PlannedStep planned_step = planned(step, count, share);
  auto weights = weights_on(c10::kCPU, count);
  const auto plain = gradients(step, weights);
  drop_gradients(weights);
  Session session(weights,
                  {.plan = planned_step.plan, .say = [](const std::string& text) { ADD_FAILURE() << text; }});
  for (int i = 0; i < 3; ++i) {
    const auto lean = gradients(step, weights);
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(plain[k], lean[k]));
    drop_gradients(weights);
    session.end_step();
  }
  EXPECT_TRUE(session.is_as_planned());
  EXPECT_EQ(session.measured().budget_use, session.predicted_bytes());
  EXPECT_LE(session.measured().budget_use, planned_step.plan.budget_bytes);
}

bool has_region(const plan::Plan& plan, const std::string& name) {
  return std::ranges::count(plan.regions, name, &plan::RegionPlan::region) == 1;
}

void shared_layer(const std::vector<at::Tensor>& weights, c10::Device device) {
  at::Tensor x = batch(device);
  for (int i = 0; i < 3; ++i) x = region("shared", [&] { return layer(x, weights[0]); });
  region("loss", [&] { return x.pow(2).mean(); }).backward();
}

TEST(AnyForward, ALayerThatIsCalledThreeTimesIsThreeRegions) {
  const PlannedStep half = planned(shared_layer, 1, 0.7);
  for (const char* name : {"shared", "shared#2", "shared#3"}) EXPECT_TRUE(has_region(half.plan, name));
  EXPECT_FALSE(has_region(half.plan, "shared#4"));
  expect_as_planned(shared_layer, 1, 0.7);
}

TEST(AnyForward, PassesMayCallALayerDifferentlyOften) {
  for (const auto& depths : std::vector<std::vector<int>>{{3, 2}, {2, 3}, {1, 4}})
    expect_as_planned(
        [&](const std::vector<at::Tensor>& weights, c10::Device device) {
          for (const int depth : depths) {
            at::Tensor x = batch(device);
            for (int i = 0; i < depth; ++i) x = region("layer", [&] { return layer(x, weights[0]); });
            region("loss", [&] { return x.pow(2).mean(); }).backward();
          }
        },
        1, 0.8);
}

TEST(AnyForward, APassMayLackARegionThatAnotherHas) {
  expect_as_planned(
      [](const std::vector<at::Tensor>& weights, c10::Device device) {
        for (const std::size_t skipped : {1u, 2u}) {
          at::Tensor x = batch(device);
          for (std::size_t i = 0; i < weights.size(); ++i)
            if (i != skipped) x = region("layer" + std::to_string(i), [&] { return layer(x, weights[i]); });
          region("loss", [&] { return x.pow(2).mean(); }).backward();
        }
      },
      4, 0.8);
}

// What a session said meanwhile; steps are compared with plain ones.
struct Loop {
  Loop(int count, SessionOptions options) : weights(weights_on(c10::kCPU, count)) {
    options.hardware = plan::preset("cpu");
    options.say = [this](const std::string& text) { said.push_back(text); };
    session.emplace(weights, options);
  }
  void step(const Passes& step, const std::vector<at::Tensor>& plain) {
    const auto lean = gradients(step, weights);
    for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(at::equal(plain[k], lean[k]));
    drop_gradients(weights);
    session->end_step();
  }
  std::vector<at::Tensor> weights;
  std::vector<std::string> said;
  std::optional<Session> session;
};

TEST(AnyForward, PassesWhoseRegionsComputeSomethingElseArePlanned) {
  at::set_num_threads(1);
  const Passes step = [](const std::vector<at::Tensor>& weights, c10::Device device) {
    for (const bool other : {false, true}) {
      at::Tensor x = batch(device);
      for (int i = 0; i < 2; ++i)
        x = region("layer", [&] { return other ? at::sin(layer(x, weights[0])) : layer(x, weights[0]); });
      region("loss", [&] { return x.pow(2).mean(); }).backward();
    }
  };
  const PlannedStep most = planned(step, 1, 0.9);
  auto weights = weights_on(c10::kCPU, 1);
  const auto plain = gradients(step, weights);
  Loop loop(1, {.plan = most.plan});
  for (int i = 0; i < 6; ++i) loop.step(step, plain);
  EXPECT_LE(loop.session->measured().budget_use, most.plan.budget_bytes);
}

// Rows go to experts as the number of the step says; some have none.
at::Tensor experts(const at::Tensor& x, const std::vector<at::Tensor>& weights, int number) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (std::size_t expert = 0; expert < weights.size(); ++expert) {
    const std::int64_t rows =
        expert + 1 == weights.size() ? kRows - begin : 32 * ((number + static_cast<int>(expert)) % 3);
    if (rows == 0) continue;
    const at::Tensor mine = x.slice(0, begin, begin + rows);
    parts.push_back(region("expert" + std::to_string(expert), [&] { return layer(mine, weights[expert]); }));
    begin += rows;
  }
  return at::cat(parts);
}

TEST(AnyForward, ExpertsThatAreCalledAsTheDataWantsRunWithinTheBudget) {
  at::set_num_threads(1);
  const auto step_of = [](int number) {
    return [number](const std::vector<at::Tensor>& weights, c10::Device device) {
      for (int pass = 0; pass < 2; ++pass) {
        at::Tensor x = batch(device);
        for (int i = 0; i < 2; ++i) x = experts(x, weights, number + pass + i);
        region("loss", [&] { return x.pow(2).mean(); }).backward();
      }
      for (const at::Tensor& weight : weights)
        if (!weight.grad().defined()) weight.mutable_grad() = at::zeros_like(weight);
    };
  };
  const PlannedStep most = planned(step_of(0), 4, 0.9);
  std::vector<std::vector<at::Tensor>> plain;
  for (int i = 0; i < 6; ++i) {
    auto weights = weights_on(c10::kCPU, 4);
    plain.push_back(gradients(step_of(i), weights));
  }
  for (const SessionOptions& options :
       {SessionOptions{.plan = most.plan}, SessionOptions{.budget_bytes = most.plan.budget_bytes}}) {
    Loop loop(4, options);
    for (int i = 0; i < 6; ++i) loop.step(step_of(i), plain[static_cast<std::size_t>(i)]);
    EXPECT_LE(loop.session->measured().budget_use, most.plan.budget_bytes);
  }
}

void head_and_loss_outside(const std::vector<at::Tensor>& weights, c10::Device device) {
  at::Tensor x = at::gelu(at::mm(batch(device), weights[0]));
  x = region("layer0", [&] { return layer(x, weights[1]); });
  x = at::tanh(x) * x;
  x = region("layer1", [&] { return layer(x, weights[2]); });
  at::log_softmax(at::mm(x, weights[3]), -1).pow(2).mean().backward();
}

TEST(AnyForward, AHeadAndALossInNoRegionArePlanned) {
  const PlannedStep half = planned(head_and_loss_outside, 4, 0.8);
  for (const char* name : {"rest", "rest#2", "rest#3"}) EXPECT_TRUE(has_region(half.plan, name)) << name;
  const auto lean = std::ranges::count_if(half.plan.regions, [](const plan::RegionPlan& region) {
    return region.region.starts_with("rest") && !(region.recompute.empty() && region.offload.empty());
  });
  EXPECT_GT(lean, 0) << "of what lies between regions nothing is recomputed";
  expect_as_planned(head_and_loss_outside, 4, 0.8);
}

TEST(AnyForward, AModelWithoutRegionsIsPlanned) {
  const Passes step = [](const std::vector<at::Tensor>& weights, c10::Device device) {
    at::Tensor x = batch(device);
    for (const at::Tensor& weight : weights) x = layer(x, weight);
    x.pow(2).mean().backward();
  };
  const PlannedStep most = planned(step, 4, 0.8);
  ASSERT_EQ(most.plan.regions.size(), 1u);
  EXPECT_TRUE(has_region(most.plan, "rest"));
  at::set_num_threads(1);
  auto weights = weights_on(c10::kCPU, 4);
  const auto plain = gradients(step, weights);
  Loop loop(4, {.plan = most.plan, .prove = false});  // a proof would hold all of it
  for (int i = 0; i < 3; ++i) loop.step(step, plain);
  EXPECT_TRUE(loop.session->is_as_planned());
  EXPECT_EQ(loop.said.size(), 0u);
  EXPECT_EQ(loop.session->measured().budget_use, loop.session->predicted_bytes());
  EXPECT_LE(loop.session->measured().budget_use, most.plan.budget_bytes);
}

TEST(AnyForward, WhatLiesBetweenRegionsIsPlannedAgainFromAStepOfItsOwn) {
  at::set_num_threads(1);
  const PlannedStep most = planned(head_and_loss_outside, 4, 0.9);
  auto weights = weights_on(c10::kCPU, 4);
  const auto plain = gradients(head_and_loss_outside, weights);
  Loop loop(4, {.budget_bytes = most.plan.budget_bytes});
  for (int i = 0; i < 5; ++i) loop.step(head_and_loss_outside, plain);
  EXPECT_EQ(loop.session->plans_made(), 1);
  EXPECT_TRUE(loop.session->is_as_planned());
  EXPECT_EQ(loop.session->measured().budget_use, loop.session->predicted_bytes());
  EXPECT_LE(loop.session->measured().budget_use, most.plan.budget_bytes);
}

TEST(AnyForward, AForwardThatThrowsBetweenRegionsLeavesThePlanInForce) {
  at::set_num_threads(1);
  const PlannedStep most = planned(head_and_loss_outside, 4, 0.9);
  auto weights = weights_on(c10::kCPU, 4);
  const auto plain = gradients(head_and_loss_outside, weights);
  Loop loop(4, {.plan = most.plan});
  for (int i = 0; i < 4; ++i) {
    EXPECT_ANY_THROW(at::mm(at::gelu(at::mm(batch(c10::kCPU), loop.weights[0])), at::ones({3, 3})));
    loop.step(head_and_loss_outside, plain);
  }
  EXPECT_TRUE(loop.session->is_as_planned());
  EXPECT_EQ(loop.said, std::vector<std::string>{});
  EXPECT_LE(loop.session->measured().budget_use, most.plan.budget_bytes);
}

}  // namespace
}  // namespace snug
