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

#include <array>
#include <barrier>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/store.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/tape/checkpoint.h"
#include "snug/zero/gloo_group.h"
#include "tests/support/temporary_folder.h"

namespace snug::zero::stages {
namespace {

constexpr std::int64_t kWide = 40, kBatch = 12, kFew = 64;
constexpr std::int64_t kWider = 200;  // pieces of two ranks are large enough to leave for the host

// An embedding that is the head as well, layers with odd sizes, one of them frozen, norms that share buckets.
struct Net {
  at::Tensor words;
  std::vector<std::vector<at::Tensor>> layers;  // weight, bias, norm's weight and bias
  at::Tensor last;

  explicit Net(at::ScalarType type, std::int64_t wide = kWide) {
    const at::Generator random = at::detail::createCPUGenerator(7);
    const auto leaf = [&](at::IntArrayRef sizes) {
      return (at::randn(sizes, random) * 0.2).to(type).requires_grad_(true);
    };
    words = leaf({33, wide});
    for (int i = 0; i < 3; ++i)
      layers.push_back({leaf({wide, wide}), leaf({wide}), leaf({wide}), leaf({wide})});
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
    return in + at::tanh(at::linear(at::layer_norm(in, {l[2].numel()}, l[2], l[3]), l[0], l[1]));
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
  std::optional<optim::HostShares> there = std::nullopt;  // none: nothing is on the host
  optim::UpdateTime update = optim::UpdateTime::InStep;
  double stepped_there = 0;
  std::int64_t wide = kWide;
};

Ran train_on(Group& group, const Setting& setting) {
  const Net net(setting.type, setting.wide);
  std::shared_ptr<host::Store> store;
  std::shared_ptr<optim::HostParameters> there;
  if (setting.there) {
    store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
    there = std::make_shared<optim::HostParameters>(at::kCPU, store, *setting.there, optim::MovedBy::Owner);
  }
  Sharding sharding(std::shared_ptr<Group>(&group, [](Group*) {}),
                    {.stage = setting.stage, .small = kFew, .there = there});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  optim::AdamW optimizer(sharding.trained(), {.decay_matrices_only = true,
                                              .master = setting.master,
                                              .placement = {.on_host = setting.there ? 1.0 : 0.0,
                                                            .store = store,
                                                            .update = setting.update,
                                                            .parameters = there,
                                                            .stepped_there = setting.stepped_there}});
  if (setting.update == optim::UpdateTime::BeforeForward)
    sharding.set_before_gather([&](hooks::RegionId region) { optimizer.finish_region(region); });
  const std::int64_t rows = kBatch / setting.ranks, part = rows / setting.passes;
  const at::Generator random = at::detail::createCPUGenerator(11);
  Ran run;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor tokens =
        at::randint(33, {kBatch, 5}, random, at::kLong).narrow(0, group.rank() * rows, rows);
    at::Tensor loss = at::zeros({}, at::kFloat);
    for (std::int64_t pass = 0; pass < setting.passes; ++pass) {
      const at::Tensor one = net.loss(tokens.narrow(0, pass * part, part), setting.recomputes);
      if (setting.tells_last && pass + 1 == setting.passes) {
        optimizer.last_pass(0.02);
        sharding.last_pass();
      }
      one.backward();
      loss = loss + one.detach();
    }
    sharding.finish_gradients();
    const at::Tensor norm =
        setting.stage == 0 ? optim::grad_norm(sharding.own_gradients()) : optimizer.gradient_norm();
    const at::Tensor sums = sharding.sum(at::stack({loss, norm * norm}), "scalars");
    run.losses.push_back(sums[0].item<double>());
    ops::UpdateControl control;
    if (setting.clips) control.factor = optim::clip_factor(sums[1].sqrt().to(at::kFloat), 0.5);
    optimizer.step(0.02, control);
    sharding.zero_grad();
    sharding.finish_update();
  }
  optimizer.finish();
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

TEST_F(Stages, WithPiecesOnTheHostHaveTheBitsOfThoseOnTheDevice) {
  using enum optim::UpdateTime;
  for (const int ranks : {1, 2})
    for (const std::int64_t passes : {1, 3})
      for (const bool in_backward : {false, true})
        for (const int stage : {2, 3}) {
          Setting setting{.ranks = ranks, .stage = stage, .type = at::kBFloat16, .passes = passes};
          setting.clips = !in_backward;
          setting.wide = kWider;
          const Ran expected = train(setting)[0];
          const std::vector<optim::HostShares> of_two{{0, 1}}, of_three{{1, 1}, {0.5, 0.5}};
          for (const optim::HostShares& shares : stage == 2 ? of_two : of_three)
            for (const auto update : {InStep, in_backward ? InBackward : BeforeForward})
              for (const double stepped_there : {0.0, 0.5}) {
                setting.there = shares;
                setting.update = update;
                setting.stepped_there = stepped_there;
                setting.recomputes = stepped_there > 0;
                SCOPED_TRACE(concat(ranks, " ranks, stage ", stage, ", ", passes, " passes, weights ",
                                    shares.weights, ", gradients ", shares.gradients, ", update ",
                                    static_cast<int>(update), ", stepped there ", stepped_there));
                for (const Ran& run : train(setting)) expect_same(run, expected);
              }
        }
}

TEST_F(Stages, WithPiecesOnTheHostLeaveNothingOfThemOnTheDevice) {
  const auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
  const auto there = std::make_shared<optim::HostParameters>(at::kCPU, store, optim::HostShares{1, 1},
                                                             optim::MovedBy::Owner);
  const Net net(at::kFloat, kWider);
  Sharding sharding(imagined_group(0, 1), {.stage = 3, .small = kFew, .there = there});
  net.each_region([&](const std::string& region, const std::vector<at::Tensor>& parameters) {
    sharding.add(region, parameters);
  });
  constexpr std::uint64_t kWeight = kWider * kWider * sizeof(float);
  EXPECT_NEAR(static_cast<double>(there->bytes()), (3 + 2) * kWeight, 5 * 512) << "one layer is frozen";
  for (const at::Tensor& piece : sharding.trained()) {
    if (!there->has_weight(piece)) continue;
    EXPECT_NE(testing::message_of<c10::Error>([&] { piece.sum(); }).find("this rank's piece of a weight"),
              std::string::npos);
    EXPECT_EQ(there->weight(piece).numel(), kWider * kWider);
  }
  for (int pass = 0; pass < 2; ++pass) net.loss(at::randint(33, {2, 5}, at::kLong), false).backward();
  sharding.finish_gradients();
  const auto away = [&] {
    return std::ranges::count_if(sharding.trained(),
                                 [&](const at::Tensor& piece) { return there->gradient_is_there(piece); });
  };
  EXPECT_EQ(away(), 2);
  const double norm = sharding.gradient_norm().item<double>();
  EXPECT_NEAR(norm, optim::grad_norm(sharding.own_gradients()).item<double>(), 1e-5 * norm);
  EXPECT_NE(testing::message_of<Error>([&] {
              sharding.clip_grad_norm_(norm / 2);
            }).find("are clipped in the optimizer's step()"),
            std::string::npos);
  EXPECT_EQ(sharding.gradient_norm().item<double>(), norm) << "none was scaled";
  sharding.zero_grad();
  EXPECT_EQ(away(), 0);
  EXPECT_EQ(sharding.gradient_norm().item<double>(), 0);
}

TEST_F(Stages, WithoutPiecesHaveNothingForTheHost) {
  const auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
  const auto with = [&](int stage, const optim::HostShares& shares) {
    Sharding(imagined_group(0, 1), {.stage = stage,
                                    .there = std::make_shared<optim::HostParameters>(at::kCPU, store, shares,
                                                                                     optim::MovedBy::Owner)});
  };
  EXPECT_NE(testing::message_of<Error>([&] { with(2, {.weights = 1}); }).find("ZeRO stage 3 makes: got 2"),
            std::string::npos);
  EXPECT_NE(testing::message_of<Error>([&] { with(1, {.gradients = 1}); }).find("stages 2 and 3 make: got 1"),
            std::string::npos);
}

// Two weights, in regions of their own, whose pieces may be on the host.
struct TwoThere {
  explicit TwoThere(std::shared_ptr<Group> group = imagined_group(0, 1), optim::HostShares shares = {1, 1},
                    optim::MovedBy by = optim::MovedBy::Owner)
      : there(std::make_shared<optim::HostParameters>(at::kCPU, store, shares, by)),
        sharding(std::move(group), {.stage = 3, .there = there}) {
    const at::Generator random = at::detail::createCPUGenerator(3);
    for (at::Tensor& weight : weights) {
      weight = at::randn({kWider, kWider}, random).requires_grad_(true);
    }
    for (std::size_t i = 0; i < weights.size(); ++i) sharding.add(region(i), {weights[i]});
  }
  static std::string region(std::size_t i) { return "two." + std::to_string(i); }

  void pass(bool fails = false) {
    at::Tensor x = at::ones({3, kWider});
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const hooks::RegionScope scope(region(i));
      x = at::linear(x, weights[i]);
      if (fails && i == 0)
        x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("somebody's hook"); });
    }
    x.square().sum().backward();
  }

  const std::shared_ptr<host::Store> store =
      std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
  const std::shared_ptr<optim::HostParameters> there;
  std::array<at::Tensor, 2> weights;
  Sharding sharding;
};

// Whoever reads weights sees the updates that wait for their region's forward.
TEST_F(Stages, AreReadAfterTheUpdatesThatWait) {
  for (const double stepped_there : {0.0, 1.0})
    for (const double share : {0.0, 1.0}) {
      TwoThere two(imagined_group(0, 1), {share, share});
      optim::AdamW optimizer(two.sharding.trained(),
                             {.placement = {.on_host = 1,
                                            .store = two.store,
                                            .update = optim::UpdateTime::BeforeForward,
                                            .parameters = two.there,
                                            .stepped_there = stepped_there}});
      two.sharding.set_before_gather([&](hooks::RegionId region) { optimizer.finish_region(region); });
      two.pass();
      two.sharding.finish_gradients();
      optimizer.step(0.1);
      two.sharding.zero_grad();
      two.sharding.finish_update();
      at::Tensor first, second;
      const auto read = [&](at::Tensor& into) {
        two.sharding.read(two.weights[1], [&](const at::Tensor& whole) { into = whole.detach().clone(); });
      };
      read(first);
      optimizer.finish();
      read(second);
      EXPECT_TRUE(at::equal(first, second)) << share << ", stepped there " << stepped_there;
    }
}

TEST_F(Stages, GoOnAfterABackwardThatFailed) {
  std::vector<double> norms;
  for (const double share : {0.0, 1.0})
    for (const bool fails : {false, true}) {
      TwoThere two(imagined_group(0, 1), {share, share});
      if (fails) {
        two.pass();
        EXPECT_THROW(two.pass(/*fails=*/true), std::runtime_error);
        two.sharding.zero_grad();
      }
      two.pass();
      two.pass();
      two.sharding.finish_gradients();
      norms.push_back(two.sharding.gradient_norm().item<double>());
    }
  EXPECT_EQ(norms, std::vector<double>(4, norms[0]));
}

TEST_F(Stages, SendGradientsOfAnotherTypeThanTheWeights) {
  TwoThere two;
  const at::Tensor weight = at::zeros({kWider, kWider}, at::kBFloat16).requires_grad_(true);
  weight.set_grad_dtype(at::kFloat);
  two.sharding.add("two.more", {weight});
  {
    const hooks::RegionScope scope("two.more");
    at::linear(at::ones({3, kWider}, at::kBFloat16), weight).sum().backward();
  }
  two.sharding.finish_gradients();
  const at::Tensor piece = two.sharding.trained().back();
  ASSERT_TRUE(two.there->gradient_is_there(piece));
  EXPECT_EQ(two.there->home_of_gradient(piece).scalar_type(), at::kFloat);
}

// Its ranks are lost when they are asked to gather.
class LostGroup final : public Group {
 public:
  LostGroup() : Group(0, 1) {}
  CollectivePtr all_gather(const at::Tensor&, const Pieces&, const std::string&,
                           const host::CopyPtr&) override {
    throw RankFailure("rank 1 is lost");
  }
  CollectivePtr reduce_scatter(const at::Tensor&, const Pieces&, const std::string&) override {
    return nullptr;
  }
  std::vector<std::string> exchange(const std::string& mine, const std::string&) override { return {mine}; }
  void abort(const std::exception_ptr&) override {}
  std::string carrier() const override { return ""; }
};

// The copy of a piece into memory that goes at once: the address sanitizer sees it.
TEST_F(Stages, WaitForAPieceThatComesWhenItsGatherFails) {
  for (int i = 0; i < 20; ++i) {
    TwoThere two(std::make_shared<LostGroup>());
    EXPECT_THROW(two.pass(), RankFailure);
  }
}

TEST_F(Stages, NamePiecesThatAreInOtherHands) {
  EXPECT_NE(testing::message_of<Error>([] {
              TwoThere(imagined_group(0, 1), {1, 1}, optim::MovedBy::Regions);
            }).find("make `there` with MovedBy::Owner"),
            std::string::npos);
  TwoThere two;
  EXPECT_NE(testing::message_of<Error>([&] {
              two.there->add("more", {at::zeros({kWider, kWider})});
            }).find("make it with MovedBy::Regions"),
            std::string::npos);
  const at::Tensor elsewhere = at::zeros({kWider, kWider}, at::kMeta).requires_grad_(true);
  EXPECT_NE(testing::message_of<Error>([&] {
              two.sharding.add("more", {elsewhere});
            }).find("pieces of region \"more\" are on meta, expected cpu"),
            std::string::npos);
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
