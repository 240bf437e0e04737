// Ranks of one process, each in a thread, train one net at every stage: the same bits, and no more memory
// than a stage promises.
#include "snug/zero/sharding.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <barrier>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "snug/base/error.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/tape/checkpoint.h"
#include "snug/zero/gloo_group.h"
#include "tests/support/temporary_folder.h"

namespace snug::zero::stages {
namespace {

constexpr std::int64_t kWide = 40, kBatch = 12, kFew = 64;

// An embedding that is the head as well, layers with odd sizes, one of them frozen, norms that share buckets.
struct Net {
  at::Tensor words;
  std::vector<std::vector<at::Tensor>> layers;  // weight, bias, norm's weight and bias
  at::Tensor last;

  explicit Net(at::ScalarType type) {
    const at::Generator random = at::detail::createCPUGenerator(7);
    const auto leaf = [&](at::IntArrayRef sizes) {
      return (at::randn(sizes, random) * 0.2).to(type).requires_grad_(true);
    };
    words = leaf({33, kWide});
    for (int i = 0; i < 3; ++i)
      layers.push_back({leaf({kWide, kWide}), leaf({kWide}), leaf({kWide}), leaf({kWide})});
    layers[1][0].requires_grad_(false);
    last = leaf({7});
  }

  template <class Add>
  void each_region(const Add& add) const {
    add("net.words", {words});
    for (std::size_t i = 0; i < layers.size(); ++i) add("net.layer" + std::to_string(i), layers[i]);
    add("net.head", {words, last});
  }

  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all{words};
    for (const auto& layer : layers)
      for (const at::Tensor& parameter : layer)
        if (parameter.requires_grad()) all.push_back(parameter);
    all.push_back(last);
    return all;
  }

  at::Tensor layer(std::size_t i, const at::Tensor& in) const {
    const auto& l = layers[i];
    return in + at::tanh(at::linear(at::layer_norm(in, {kWide}, l[2], l[3]), l[0], l[1]));
  }

  at::Tensor loss(const at::Tensor& tokens, bool recomputes) const {
    at::Tensor x;
    {
      const hooks::RegionScope region("net.words");
      x = at::embedding(words, tokens);
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const hooks::RegionScope region("net.layer" + std::to_string(i));
      x = recomputes ? checkpoint([&](const at::Tensor& in) { return layer(i, in); }, x) : layer(i, x);
    }
    const hooks::RegionScope region("net.head");
    const at::Tensor logits = at::linear(x * (1 + last.sum()), words).to(at::kFloat);
    return (logits * logits).sum() / 1000 - logits.sum() / 100;
  }
};

struct Ran {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

struct Setting {
  int ranks, stage;
  at::ScalarType type = at::kFloat;
  std::int64_t passes = 1;
  bool clips = true, recomputes = false, tells_last = true;
  optim::Master master = optim::Master::Split;
};

Ran train_on(Group& group, const Setting& setting) {
  const Net net(setting.type);
  Sharding sharding(std::shared_ptr<Group>(&group, [](Group*) {}), {.stage = setting.stage, .small = kFew});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  optim::AdamW optimizer(sharding.trained(), {.decay_matrices_only = true, .master = setting.master});
  const std::int64_t rows = kBatch / setting.ranks, part = rows / setting.passes;
  const at::Generator random = at::detail::createCPUGenerator(11);
  Ran run;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor tokens =
        at::randint(33, {kBatch, 5}, random, at::kLong).narrow(0, group.rank() * rows, rows);
    at::Tensor loss = at::zeros({}, at::kFloat);
    for (std::int64_t pass = 0; pass < setting.passes; ++pass) {
      const at::Tensor one = net.loss(tokens.narrow(0, pass * part, part), setting.recomputes);
      if (setting.tells_last && pass + 1 == setting.passes) sharding.last_pass();
      one.backward();
      loss = loss + one.detach();
    }
    sharding.finish_gradients();
    const at::Tensor norm = optim::grad_norm(sharding.own_gradients());
    const at::Tensor sums = sharding.sum(at::stack({loss, norm * norm}), "scalars");
    run.losses.push_back(sums[0].item<double>());
    ops::UpdateControl control;
    if (setting.clips) control.factor = optim::clip_factor(sums[1].sqrt().to(at::kFloat), 0.5);
    optimizer.step(0.02, control);
    sharding.zero_grad();
    sharding.finish_update();
  }
  for (const at::Tensor& parameter : net.parameters())
    sharding.read(parameter, [&](const at::Tensor& whole) { run.weights.push_back(whole.detach().clone()); });
  return run;
}

// By rank.
std::vector<Ran> train(const Setting& setting) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Ran> runs(static_cast<std::size_t>(setting.ranks));
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failed;
  const auto role = [&](int rank) {
    const auto group = setting.ranks == 1
                           ? imagined_group(0, 1)
                           : connect_gloo(store, rank, setting.ranks, at::kCPU,
                                          {.address = "127.0.0.1", .timeout = std::chrono::seconds(20)});
    runs[static_cast<std::size_t>(rank)] = train_on(*group, setting);
  };
  for (int rank = 0; rank < setting.ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        role(rank);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failed) std::rethrow_exception(failed);
  return runs;
}

void expect_same(const Ran& one, const Ran& other) {
  EXPECT_EQ(one.losses, other.losses);
  ASSERT_EQ(one.weights.size(), other.weights.size());
  for (std::size_t i = 0; i < one.weights.size(); ++i)
    EXPECT_TRUE(at::equal(one.weights[i], other.weights[i])) << i;
}

class Stages : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

TEST_F(Stages, ThatSumAtTheSameMomentsHaveTheSameBitsOnEveryRank) {
  for (const int ranks : {1, 2, 3, 4})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const std::int64_t passes : {1, 3}) {
        Setting setting{.ranks = ranks, .stage = 0, .type = type, .passes = passes};
        if (ranks == 4 && passes == 3) setting.recomputes = true;
        const Ran first = train(setting)[0];
        Ran of_two;
        for (const int stage : {0, 1, 2, 3}) {
          SCOPED_TRACE(concat(ranks, " ranks, stage ", stage, ", ", passes, " passes, ", type));
          setting.stage = stage;
          const std::vector<Ran> runs = train(setting);
          for (const Ran& run : runs) expect_same(run, runs[0]);
          if (stage < 2 || passes == 1) expect_same(runs[0], first);
          if (stage == 2) of_two = runs[0];
          if (stage == 3) expect_same(runs[0], of_two);
        }
      }
}

TEST_F(Stages, InFp32AgreeWithOneRank) {
  const Ran one = train({.ranks = 1, .stage = 0})[0];
  for (const int ranks : {2, 3, 4})
    for (const int stage : {0, 3}) {
      const Ran many = train({.ranks = ranks, .stage = stage})[0];
      for (std::size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(many.losses[i], one.losses[i], 1e-6 * std::abs(one.losses[i]));
    }
}

TEST_F(Stages, NeedNotBeToldWhichPassIsTheLast) {
  for (const int stage : {0, 1, 2, 3}) {
    Setting setting{.ranks = 2, .stage = stage, .passes = 2};
    const Ran told = train(setting)[0];
    setting.tells_last = false;
    expect_same(train(setting)[0], told);
  }
}

TEST_F(Stages, ThreeHasAWeightOnlyWhileItsRegionRuns) {
  const Net net(at::kFloat);
  Sharding sharding(imagined_group(0, 1), {.stage = 3, .small = kFew});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  const at::Tensor& weight = net.layers[0][0];
  EXPECT_NE(testing::message_of<c10::Error>([&] { weight.sum(); }).find("shared out over the ranks"),
            std::string::npos);
  sharding.write(weight, [&] {
    const at::NoGradGuard no_grad;
    weight.fill_(3);
  });
  sharding.read(weight,
                [&](const at::Tensor& whole) { EXPECT_EQ(whole.sum().item<float>(), 3 * weight.numel()); });
  EXPECT_NE(testing::message_of<c10::Error>([&] { weight.sum(); }).find("\"net.layer0\""), std::string::npos);
}

TEST_F(Stages, AGradientAfterTheLastPassIsNamed) {
  const Net net(at::kFloat);
  Sharding sharding(imagined_group(0, 1), {.stage = 1, .small = kFew});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  const at::Tensor tokens = at::randint(33, {2, 5}, at::kLong);
  sharding.last_pass();
  net.loss(tokens, false).backward();
  EXPECT_NE(testing::message_of<Error>([&] {
              net.loss(tokens, false).backward();
              sharding.finish_gradients();
            }).find("call it before the last one"),
            std::string::npos);
}

// As torch's clip_grad_norm_ on one process that has all gradients.
TEST_F(Stages, ClipByTheNormOfAllRanks) {
  const Net net(at::kFloat);
  Sharding sharding(imagined_group(0, 1), {.stage = 2, .small = kFew});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  net.loss(at::randint(33, {2, 5}, at::kLong), false).backward();
  sharding.finish_gradients();
  const double norm = sharding.gradient_norm().item<double>();
  ASSERT_GT(norm, 0);
  EXPECT_EQ(sharding.clip_grad_norm_(2 * norm).item<double>(), norm);
  EXPECT_EQ(sharding.gradient_norm().item<double>(), norm);
  EXPECT_EQ(sharding.clip_grad_norm_(norm / 4).item<double>(), norm);
  EXPECT_NEAR(sharding.gradient_norm().item<double>(), norm / 4, 1e-5 * norm);
}

TEST_F(Stages, OfMoreRanksThanElementsAreRefused) {
  const at::Tensor few = at::zeros({4}).requires_grad_(true);
  Sharding last(imagined_group(3, 8), {.stage = 1});
  const at::Tensor meta = at::zeros({4}, at::kMeta).requires_grad_(true);
  last.add("few", {meta});
  EXPECT_NE(testing::message_of<Error>([&] { last.trained(); }).find("too few parameters for so many ranks"),
            std::string::npos);
  EXPECT_NE(testing::message_of<Error>([] {
              Sharding(imagined_group(0, 1), {.stage = 4});
            }).find("0, 1, 2 or 3, got 4"),
            std::string::npos);
}

}  // namespace
}  // namespace snug::zero::stages
