// What the torch-free timeline says of any fates is what a capture of the step under them says, to the byte.
#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "snug/base/error.h"
#include "snug/capture/capture.h"
#include "snug/capture/sketch.h"
#include "snug/capture/sketcher.h"
#include "snug/models/llama.h"
#include "snug/plan/step_allocations.h"
#include "snug/plan/timeline.h"
#include "snug/tape/recording.h"
#include "snug/tape/region.h"
#include "tests/support/live_log.h"

namespace snug::capture {
namespace {

using plan::Profile;
using plan::Timeline;
using trace::Fate;
using FatesOfCalls = std::vector<std::vector<Fate>>;

using Run = std::function<void(memory::Tracker&)>;

const models::ModelConfig kSmall{.vocab_size = 128,
                                 .hidden_size = 64,
                                 .intermediate_size = 176,
                                 .num_layers = 3,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .head_dim = 16,
                                 .max_positions = 64};

Run llama_steps(const models::ModelConfig& config, at::ScalarType dtype, int passes) {
  return [=](memory::Tracker& tracker) {
    models::Llama model(config, at::TensorOptions(c10::kMeta).dtype(dtype));
    tracker.adopt(model->parameters(), trace::Category::Parameter);
    const auto tokens = at::empty({2, 16}, at::TensorOptions(at::kLong).device(c10::kMeta));
    for (int pass = 0; pass < passes; ++pass) model->loss_sum(tokens, tokens).backward();
  };
}

// The fates of a region are those of its first call.
tape::Fates as_fates(const trace::Sketch& sketch, const FatesOfCalls& fates) {
  std::map<std::string, std::map<std::pair<std::uint32_t, std::uint32_t>, Fate>, std::less<>> by_region;
  for (std::size_t call = 0; call < fates.size(); ++call) {
    const trace::RegionTape& tape = sketch.calls[call].tape;
    for (std::size_t i = 0; i < tape.values.size(); ++i)
      if (!tape.values[i].parameter)  // they are not asked for, and not numbered
        by_region[tape.region].try_emplace({tape.values[i].operation, tape.values[i].output}, fates[call][i]);
  }
  return tape::Fates([by_region](const tape::ValueInfo& value) {
    return by_region.find(value.outermost)->second.at({value.ordinal, value.output});
  });
}

LiveLog captured(const Run& run, const tape::Fates& fates) {
  LiveLog log;
  capture(c10::kMeta,
          [&](memory::Tracker& tracker) {
            tape::Recording recording(fates);
            run(tracker);
          },
          {.sink = &log});
  return log;
}

FatesOfCalls random_fates(const Timeline& timeline, std::mt19937& random) {
  const trace::Sketch& sketch = timeline.sketch();
  const double share = std::uniform_real_distribution<double>(0, 1)(random);
  std::map<std::string, std::vector<Fate>> by_region;
  FatesOfCalls fates;
  for (std::size_t call = 0; call < sketch.calls.size(); ++call) {
    auto& drawn = by_region[sketch.calls[call].tape.region];
    if (drawn.empty())
      for (std::size_t i = 0; i < sketch.calls[call].tape.values.size(); ++i)
        drawn.push_back(std::bernoulli_distribution(share)(random)
                            ? Fate::Recompute
                            : static_cast<Fate>(2 * std::bernoulli_distribution(0.5)(random)));
    fates.push_back(timeline.allowed(call, drawn));
  }
  return fates;
}

std::uint64_t simulated_peak(const Timeline& timeline, const FatesOfCalls& fates) {
  std::vector<Profile> profiles;
  for (std::size_t call = 0; call < fates.size(); ++call)
    profiles.push_back(timeline.profile(call, fates[call]));
  std::vector<const Profile*> all;
  for (const Profile& profile : profiles) all.push_back(&profile);
  return timeline.peak(all);
}

void expect_exact(const Run& run, int assignments, unsigned seed) {
  const trace::Sketch sketched = sketch(run);
  const Timeline timeline(sketched);
  std::mt19937 random(seed);
  for (int i = 0; i < assignments; ++i) {
    FatesOfCalls fates = random_fates(timeline, random);
    if (i < 2)
      for (std::size_t call = 0; call < fates.size(); ++call)
        fates[call] = timeline.allowed(
            call, std::vector<Fate>(fates[call].size(), i == 0 ? Fate::Keep : Fate::Recompute));
    SCOPED_TRACE(testing::Message() << "assignment " << i << ", seed " << seed);
    const LiveLog ran = captured(run, as_fates(sketched, fates));
    LiveLog replayed;
    plan::replay_steps(timeline, fates, {.count = 1}, replayed);
    ASSERT_EQ(simulated_peak(timeline, fates), ran.ledger.peak_bytes());
    ASSERT_EQ(replayed.taken, ran.taken);
  }
}

TEST(SketchedStep, LlamaWithRandomFatesIsExact) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int passes : {1, 2}) expect_exact(llama_steps(kSmall, dtype, passes), 60, 7);
}

Run network(const std::function<at::Tensor(const at::Tensor&)>& forward, at::IntArrayRef sizes,
            const std::vector<at::Tensor>& weights) {
  return [=, sizes = sizes.vec()](memory::Tracker&) {
    forward(at::empty(sizes, at::TensorOptions(c10::kMeta))).sum().backward();
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  };
}

TEST(SketchedStep, ConvolutionsAndWritesInPlaceAreExact) {
  const at::Tensor first = at::empty({8, 3, 3, 3}, c10::kMeta).requires_grad_();
  const at::Tensor second = at::empty({8, 8, 3, 3}, c10::kMeta).requires_grad_();
  const auto forward = [=](const at::Tensor& input) {
    const at::Tensor half = region("first", [&] {
      const at::Tensor x = at::conv2d(input.clone().mul_(2), first, {}, 1, 1).relu_();
      return at::conv2d(x, second, {}, 1, 1);
    });
    return region("second", [&] { return (at::relu(half) * 2).add_(1).sigmoid() * half; });
  };
  expect_exact(network(forward, {4, 3, 10, 10}, {first, second}), 100, 3);
}

TEST(SketchedStep, WhatIsOverwrittenAfterItWasReadIsExact) {
  const at::Tensor weight = at::empty({24, 24}, c10::kMeta).requires_grad_();
  const auto forward = [weight](const at::Tensor& input) {
    at::Tensor x = input;
    for (const char* name : {"one", "two"})
      x = region(name, [&] {
        at::Tensor h = at::linear(x, weight);
        const at::Tensor read = (h * 2).sin();  // sin saves what the product made; nobody saves h
        h.add_(1);
        const at::Tensor again = (h + 3).cos();
        h.mul_(2);
        return read * again + h.tanh();
      });
    return x;
  };
  expect_exact(network(forward, {6, 5, 24}, {weight}), 200, 11);
}

TEST(SketchedStep, SharedWeightsViewsAndDropoutAreExact) {
  const at::Tensor weight = at::empty({24, 24}, c10::kMeta).requires_grad_();
  const auto forward = [weight](const at::Tensor& input) {
    at::Tensor x = input;
    for (const char* name : {"one", "two", "three"})
      x = region(name, [&] {
        const at::Tensor h = at::dropout(at::gelu(at::linear(x, weight)), 0.1, /*train=*/true);
        const auto parts = h.chunk(3, -1);
        return at::cat({parts[2].tanh(), parts[0] * parts[1], parts[1].softmax(-1)}, -1) + x;
      });
    return x;
  };
  expect_exact(network(forward, {6, 5, 24}, {weight}), 100, 5);
}

// A sketch made while a step runs for real, nothing kept, speaks of that step under any fates.
TEST(SketchedStep, WhereItRunsIsExactButForInputs) {
  at::set_num_threads(1);
  models::Llama model(kSmall, at::TensorOptions(c10::kCPU));
  const at::Tensor tokens = at::randint(128, {2, 16}, at::kLong);
  const auto step = [&] {
    model->loss_sum(tokens, tokens).backward();
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
  };

  memory::Tracker tracker;
  tracker.adopt(model->parameters(), trace::Category::Parameter);
  Sketcher sketcher(tracker);
  hooks::OperatorListenerGuard guard(sketcher);
  tape::Recording recording(tape::Fates::recompute());
  step();
  sketcher.begin(recording);
  step();
  const trace::Sketch sketched = sketcher.finish(recording);
  const Timeline timeline(sketched);
  std::mt19937 random(23);
  for (int i = 0; i < 60; ++i) {
    const FatesOfCalls fates = random_fates(timeline, random);
    recording.use(as_fates(sketched, fates));
    tracker.reset_peak();
    step();
    // A region's input may be counted longer than these fates need it.
    ASSERT_GE(simulated_peak(timeline, fates), tracker.peak_bytes()) << "assignment " << i;
    ASSERT_LE(simulated_peak(timeline, fates), tracker.peak_bytes() + 512) << "assignment " << i;
  }
}

// Gradients and the loss outlive the step in this loop: the next one finds them, and lets go of them. A step
// that is sketched in the middle of the run says what any number of further ones do.
TEST(SketchedStep, InTheMiddleOfARunItIsFollowedByItsLike) {
  at::set_num_threads(1);
  models::Llama model(kSmall, at::TensorOptions(c10::kCPU));
  const at::Tensor tokens = at::randint(128, {2, 16}, at::kLong);
  at::Tensor loss;
  const auto step = [&] {
    for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    loss = model->loss_sum(tokens, tokens);
    loss.backward();
  };
  memory::Tracker tracker;
  tracker.adopt(model->parameters(), trace::Category::Parameter);
  Sketcher sketcher(tracker);
  hooks::OperatorListenerGuard guard(sketcher);
  tape::Recording recording(tape::Fates::recompute(), {.prove = false});
  step();
  sketcher.begin(recording);
  step();
  const trace::Sketch sketched = sketcher.finish(recording);
  const auto stays = [](const trace::Sketch::Block& block) { return block.stays; };
  EXPECT_EQ(std::ranges::count_if(sketched.blocks, stays), 0) << "all that is left has its place";
  const Timeline timeline(sketched);
  std::mt19937 random(29);
  for (int i = 0; i < 20; ++i) {
    const FatesOfCalls fates = random_fates(timeline, random);
    recording.use(as_fates(sketched, fates));
    step();
    LiveLog ran, replayed;
    tracker.send_to(&ran);
    for (int k = 0; k < 3; ++k) step();
    tracker.send_to(nullptr);
    plan::replay_steps(timeline, fates, {.count = 3}, replayed);
    ASSERT_EQ(replayed.taken, ran.taken) << "assignment " << i;
  }
}

// As where a backward has nodes on two devices.
TEST(SketchedStep, TheOperatorsOfTwoThreadsAreAllThere) {
  memory::Tracker tracker;
  Sketcher sketcher(tracker);
  hooks::OperatorListenerGuard guard(sketcher);
  tape::Recording recording(tape::Fates::recompute());
  sketcher.begin(recording);
  const auto run = [] {
    for (int i = 0; i < 2000; ++i) at::ones({1});
  };
  std::thread other([&, state = at::ThreadLocalState()] {
    at::ThreadLocalStateGuard as_autograds_threads(state);
    run();
  });
  run();
  other.join();
  EXPECT_EQ(sketcher.finish(recording).operators.size(), 2u * 2000);
}

TEST(SketchedStep, MarksOfTheProgramAreNotTakenForItsOwn) {
  const at::Tensor weight = at::empty({8, 8}, c10::kMeta).requires_grad_();
  const auto sketch_with = [&](const std::vector<std::string>& marks) {
    return sketch([&](memory::Tracker& tracker) {
      const auto mark = [&] {
        for (const std::string& name : marks) tracker.mark(name);
      };
      const at::Tensor y = region("r", [&] {
        const at::Tensor x = at::empty({4, 8}, c10::kMeta).mm(weight);
        mark();
        return x.exp();
      });
      mark();
      const at::Tensor loss = y.sum();
      loss.backward();
      weight.mutable_grad().reset();
      mark();
    });
  };
  const std::vector<std::string> marks{"region begins", "region ends", "unpack", "unpacked", "released"};
  const trace::Sketch plain = sketch_with({});
  EXPECT_EQ(sketch_with(marks), plain);
  for (const std::string& name : marks) EXPECT_EQ(sketch_with({name}), plain) << name;
}

TEST(SketchedStep, AGraphThatOutlivesItIsRefusedAndHarmless) {
  const at::Tensor weight = at::empty({8, 8}, c10::kMeta).requires_grad_();
  at::Tensor loss;
  EXPECT_THROW(
      sketch([&](memory::Tracker&) {
        loss = region("r", [&] { return at::linear(at::empty({4, 8}, c10::kMeta), weight).exp().sum(); });
      }),
      Error);
  loss.backward();  // nobody listens any more
  loss.reset();
}

TEST(SketchedStep, ASecondBackwardThroughARegionIsRefused) {
  const at::Tensor weight = at::empty({8, 8}, c10::kMeta).requires_grad_();
  EXPECT_THROW(
      sketch([&](memory::Tracker&) {
        const at::Tensor y = region("r", [&] { return at::empty({4, 8}, c10::kMeta).mm(weight).exp(); });
        y.sum().backward({}, /*retain_graph=*/true);
        y.mean().backward();
      }),
      Error);
}

}  // namespace
}  // namespace snug::capture
