// What listeners hear of backwards that go their own ways, and what becomes of what listeners throw.
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "snug/hooks/operators.h"
#include "snug/hooks/saved_tensors.h"
#include "tests/hooks/region_log.h"

namespace snug::hooks {
namespace {

namespace ag = torch::autograd;

struct NoRoom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws where it is told to, once.
struct Throwing : Log {
  void before_backward(RegionId id) override {
    Log::before_backward(id);
    fail_at("before_backward");
  }
  void after_backward(RegionId id) override {
    Log::after_backward(id);
    fail_at("after_backward");
  }
  void gradient_ready(const at::Tensor& leaf) override {
    Log::gradient_ready(leaf);
    fail_at("gradient_ready");
  }
  void fail_at(const std::string& here) {
    if (here != place) return;
    place.clear();
    throw NoRoom("no room");
  }
  std::string place;
};

class ThrowingListener : public testing::TestWithParam<const char*> {
 protected:
  void fail_then_step() {
    throwing_.place = GetParam();
    EXPECT_THROW(model_.loss().backward(), NoRoom);
    throwing_.lines.clear();
    EXPECT_NO_THROW(model_.loss().backward()) << "it was thrown once";
  }
  // The first line may close what the failure left open.
  void expect_a_good_step() const {
    Lines lines = throwing_.lines;
    if (!lines.empty() && lines.front().starts_with("end backward")) lines.erase(lines.begin());
    EXPECT_EQ(lines, kForward + kBackward);
  }

  TwoLayers model_;
  Throwing throwing_;
  RegionListenerGuard guard_{throwing_};
};

TEST_P(ThrowingListener, FailsTheBackwardOnce) {
  fail_then_step();
  expect_a_good_step();
}

TEST_P(ThrowingListener, FailsItAtTheNextOperator) {
  struct Count : OperatorListener {
    void on_operator(OperatorCall& call) override {
      ++count;
      call.proceed();
    }
    int count = 0;
  } whole, until;
  {
    OperatorListenerGuard operators(whole);
    model_.loss().backward();
  }
  throwing_.place = GetParam();
  {
    OperatorListenerGuard operators(until);
    EXPECT_THROW(model_.loss().backward(), NoRoom);
  }
  EXPECT_LT(until.count, whole.count);
  throwing_.lines.clear();
  model_.loss().backward();
  expect_a_good_step();
}

INSTANTIATE_TEST_SUITE_P(Everywhere, ThrowingListener,
                         testing::Values("before_backward", "after_backward", "gradient_ready"),
                         [](const auto& place) { return std::string(place.param); });

TEST(Backward, ARegionThatAListenerRefusesIsNotEnded) {
  TwoLayers model;
  Throwing throwing;
  Log other;
  RegionListenerGuard guard(throwing), others_guard(other);
  throwing.place = "before_backward";
  EXPECT_THROW(model.loss().backward(), NoRoom);
  { RegionScope next("next"); }
  EXPECT_EQ(throwing.lines, (kForward + Lines{"backward second", "forward next", "end forward next"}));
  EXPECT_EQ(std::ranges::count(other.lines, "backward second"),
            std::ranges::count(other.lines, "end backward second"));
}

TEST(Backward, AFailureIsThrownByTheUnpackOfASavedTensor) {
  struct Unpacks : SavedTensorListener {
    void on_save(const at::Tensor&) override {}
    void on_unpack(const at::Tensor&) override { ++count; }
    int count = 0;
  } unpacks;
  TwoLayers model;
  Throwing throwing;
  RegionListenerGuard guard(throwing);
  SavedTensorListenerGuard saves(unpacks);
  throwing.place = "before_backward";
  EXPECT_THROW(model.loss().backward(), NoRoom);
  EXPECT_EQ(unpacks.count, 0);
}

TEST(Backward, OfTwoListenersThatThrowTheFirstIsHeard) {
  TwoLayers model;
  Throwing one, two;
  RegionListenerGuard guard_of_one(one), guard_of_two(two);
  one.place = two.place = "gradient_ready";
  EXPECT_THROW(model.loss().backward(), NoRoom);
  EXPECT_NO_THROW(model.loss().backward());
}

void backward_by_the_base_engine(const at::Tensor& loss) {
  ag::Engine::get_base_engine().execute({ag::impl::gradient_edge(loss)}, {at::ones_like(loss)}, false, false,
                                        true);
}

TEST(Backward, OneThatPassesTheEnginesSlotByIsHeardToItsEnd) {
  TwoLayers model;
  Log log;
  RegionListenerGuard guard(log);
  for (int i = 0; i < 2; ++i) {
    log.lines.clear();
    backward_by_the_base_engine(model.loss());
    EXPECT_EQ(log.lines, kForward + kBackward);
    EXPECT_EQ(current_region(), 0u);
  }
}

TEST(Backward, OneThatPassesTheEnginesSlotByFailsWithItsListener) {
  TwoLayers model;
  Throwing throwing;
  RegionListenerGuard guard(throwing);
  throwing.place = "gradient_ready";
  EXPECT_THROW(backward_by_the_base_engine(model.loss()), NoRoom);
  throwing.lines.clear();
  backward_by_the_base_engine(model.loss());
  EXPECT_EQ(throwing.lines.back(), "end backward first");
}

// Its node does as it is told.
struct Told : ag::Function<Told> {
  static at::Tensor forward(ag::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static ag::variable_list backward(ag::AutogradContext*, ag::variable_list gradients) {
    if (does) does();
    return gradients;
  }
  static inline std::function<void()> does;
};

struct BackwardWithin : testing::Test {
  void TearDown() override { Told::does = nullptr; }
  at::Tensor loss() {
    RegionScope scope("outer");
    return Told::apply(x).sin().sum();
  }
  at::Tensor x = at::ones({2}).requires_grad_();
  TwoLayers inner;
};

TEST_F(BackwardWithin, LiesInTheStretchOfItsNode) {
  Log log;
  RegionListenerGuard guard(log);
  Lines where;
  Told::does = [&] {
    at::AutoGradMode on(true);
    where.push_back(region_name(current_region()));
    inner.loss().backward();
    where.push_back(region_name(current_region()));
  };
  at::Tensor y = loss();
  log.lines.clear();
  y.backward();
  EXPECT_EQ(log.lines, Lines{"backward outer"} + kForward + kBackward + Lines{"end backward outer"});
  EXPECT_EQ(where, (Lines{"outer", "outer"}));
  EXPECT_EQ(current_region(), 0u);
}

TEST_F(BackwardWithin, ThatFailsWithItsListenerFailsTheOuterOneOnce) {
  Throwing throwing;
  RegionListenerGuard guard(throwing);
  Told::does = [&] {
    at::AutoGradMode on(true);
    throwing.place = "before_backward";
    inner.loss().backward();
  };
  EXPECT_THROW(loss().backward(), NoRoom);
  Told::does = nullptr;
  throwing.lines.clear();
  EXPECT_NO_THROW(loss().backward());
  EXPECT_EQ(throwing.lines, (Lines{"end backward outer", "forward outer", "end forward outer",
                                   "backward outer", "end backward outer"}));
}

TEST_F(BackwardWithin, MayFailAndBeCaught) {
  Throwing throwing;
  RegionListenerGuard guard(throwing);
  Told::does = [&] {
    at::AutoGradMode on(true);
    throwing.place = "before_backward";
    EXPECT_THROW(inner.loss().backward(), NoRoom);
  };
  EXPECT_NO_THROW(loss().backward());
  EXPECT_EQ(throwing.lines.back(), "end backward outer");
}

TEST_F(BackwardWithin, ANodeThatThrowsLeavesItsStretchToTheNextRegion) {
  Log log;
  RegionListenerGuard guard(log);
  Told::does = [] { throw std::runtime_error("failed in backward"); };
  EXPECT_THROW(loss().backward(), std::runtime_error);
  EXPECT_EQ(current_region(), 0u);
  log.lines.clear();
  inner.loss().backward();
  EXPECT_EQ(log.lines, Lines{"end backward outer"} + kForward + kBackward);
}

TEST_F(BackwardWithin, ANodeThatThrowsLeavesItsStretchToTheNextBackward) {
  Log log;
  RegionListenerGuard guard(log);
  at::Tensor other = inner.loss();
  at::Tensor y = loss();
  Told::does = [] { throw std::runtime_error("failed in backward"); };
  EXPECT_THROW(y.backward(), std::runtime_error);
  log.lines.clear();
  other.backward();
  EXPECT_EQ(log.lines, Lines{"end backward outer"} + kBackward);
}

struct Open : RegionListener {
  void before_backward(RegionId id) override { add(id, 1); }
  void after_backward(RegionId id) override { add(id, -1); }
  void add(RegionId id, int by) {
    std::lock_guard lock(mutex);
    count[id] += by;
    begun += by > 0;
  }
  std::mutex mutex;
  std::map<RegionId, int> count;
  int begun = 0;
};

// A backward starts another one: no lock is held meanwhile.
TEST(Backward, AListenerMayRunABackwardItself) {
  struct Nested : Log {
    void before_backward(RegionId id) override {
      Log::before_backward(id);
      if (region_name(id) != "second" || std::exchange(is_done, true)) return;
      at::AutoGradMode on(true);
      at::Tensor x = at::ones({2}).requires_grad_();
      at::Tensor y;
      {
        RegionScope scope("of the listener");
        y = x.sin().sum();
      }
      y.backward();
    }
    bool is_done = false;
  } nested;
  TwoLayers model;
  RegionListenerGuard guard(nested);
  model.loss().backward();
  EXPECT_EQ(nested.lines,
            (kForward + Lines{"backward second", "forward of the listener", "end forward of the listener",
                              "backward of the listener", "end backward of the listener",
                              "end backward second", "backward first", "end backward first"}));
}

TEST(Backward, OfSeveralThreadsUnderOneListenerEndsAsOftenAsItBegins) {
  Open open;
  RegionListenerGuard guard(open);
  const at::ThreadLocalState here;
  constexpr int kBackwards = 50;
  const auto run = [&] {
    const at::ThreadLocalStateGuard same(here);
    TwoLayers model;
    for (int i = 0; i < kBackwards; ++i) model.loss().backward();
  };
  std::thread a(run), b(run);
  a.join();
  b.join();
  EXPECT_GE(open.begun, 2 * 2 * kBackwards);
  for (const auto& [region, count] : open.count) EXPECT_EQ(count, 0) << region_name(region);
}

}  // namespace
}  // namespace snug::hooks
