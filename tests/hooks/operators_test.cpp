#include "snug/hooks/operators.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace snug::hooks {
namespace {

struct Names : OperatorListener {
  void on_operator(OperatorCall& call) override {
    names.push_back(call.op.schema().name());
    call.proceed();
  }
  std::vector<std::string> names;
};

at::Tensor leaf() {
  return at::ones({2, 2}).requires_grad_();
}

TEST(Operators, ForwardAndBackwardAreSeenInOrder) {
  at::Tensor x = leaf();
  Names seen;
  OperatorListenerGuard guard(seen);
  (x * 3).sum().backward();
  const std::vector<std::string> expected = {"aten::mul",    "aten::sum", "aten::ones_like",
                                             "aten::expand", "aten::mul", "aten::detach"};
  EXPECT_EQ(seen.names, expected);
}

TEST(Operators, NothingIsSeenAfterTheGuard) {
  Names seen;
  { OperatorListenerGuard guard(seen); }
  at::ones({2}) + 1;
  EXPECT_TRUE(seen.names.empty());
}

TEST(Operators, FactoriesAreSeenAndInnerCallsAreNot) {
  Names seen;
  OperatorListenerGuard guard(seen);
  at::embedding(at::zeros({4, 2}), at::zeros({1}, at::kLong));  // calls index_select inside its kernel
  for (const auto& name : seen.names) EXPECT_NE(name, "aten::index_select");
  EXPECT_NE(std::find(seen.names.begin(), seen.names.end(), "aten::zeros"), seen.names.end());
  EXPECT_EQ(seen.names.back(), "aten::embedding");
}

TEST(Operators, NestedListenersRunInnermostFirst) {
  struct Tag : OperatorListener {
    Tag(std::vector<int>& order, int id) : order(order), id(id) {}
    void on_operator(OperatorCall& call) override {
      order.push_back(id);
      call.proceed();
      order.push_back(-id);
    }
    std::vector<int>& order;
    int id;
  };
  std::vector<int> order;
  Tag outer(order, 1), inner(order, 2);
  OperatorListenerGuard outer_guard(outer);
  OperatorListenerGuard inner_guard(inner);
  at::ones({1}).neg_();
  EXPECT_EQ(order, (std::vector<int>{2, 1, -1, -2, 2, 1, -1, -2}));
}

TEST(Operators, AListenerCanAnswerInPlaceOfTheOperator) {
  struct Answer : OperatorListener {
    void on_operator(OperatorCall& call) override {
      if (call.op.schema().name() != "aten::neg") return call.proceed();
      torch::jit::drop(call.stack, 1);
      torch::jit::push(call.stack, at::full({1}, 42.0));
    }
  } answer;
  const at::Tensor x = at::ones({1});
  OperatorListenerGuard guard(answer);
  EXPECT_EQ(x.neg().item<float>(), 42.0f);
}

TEST(Operators, AnExceptionOfTheOperatorPassesAndLeavesTheStackWhole) {
  Names seen;
  {
    OperatorListenerGuard guard(seen);
    EXPECT_THROW(at::ones({2, 3}).mm(at::ones({2, 3})), c10::Error);
    seen.names.clear();
    at::ones({1});
    EXPECT_EQ(seen.names, std::vector<std::string>{"aten::ones"});
  }
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kOperatorKey));
}

TEST(Operators, AnExceptionOfTheListenerArrivesAsItself) {
  struct Refuse : OperatorListener {
    void on_operator(OperatorCall&) override { throw std::runtime_error("refused"); }
  } refuse;
  OperatorListenerGuard guard(refuse);
  EXPECT_THROW(at::ones({1}), std::runtime_error);
}

TEST(Operators, AnotherThreadIsNotWatched) {
  Names seen;
  OperatorListenerGuard guard(seen);
  std::thread([] { at::ones({2}) + 1; }).join();
  EXPECT_TRUE(seen.names.empty());
}

TEST(Operators, TwoThreadsHaveTheirOwnListeners) {
  Names first, second;
  std::thread a([&] {
    OperatorListenerGuard guard(first);
    for (int i = 0; i < 100; ++i) at::ones({2});
  });
  std::thread b([&] {
    OperatorListenerGuard guard(second);
    for (int i = 0; i < 50; ++i) at::zeros({2});
  });
  a.join();
  b.join();
  EXPECT_EQ(first.names, std::vector<std::string>(100, "aten::ones"));
  EXPECT_EQ(second.names, std::vector<std::string>(50, "aten::zeros"));
}

TEST(Operators, GuardsOfAThreadEndInAnyOrder) {
  Names first, second;
  auto first_guard = std::make_unique<OperatorListenerGuard>(first);
  auto second_guard = std::make_unique<OperatorListenerGuard>(second);
  first_guard.reset();
  at::ones({1});
  EXPECT_TRUE(first.names.empty());
  EXPECT_EQ(second.names, std::vector<std::string>{"aten::ones"});
  second_guard.reset();
  at::ones({1});
  EXPECT_EQ(second.names.size(), 1u);
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kOperatorKey));
  EXPECT_EQ(current_frames(), nullptr);
}

TEST(Operators, AGuardThatIsReplacedByALaterOneAgainAndAgainLeavesNothing) {
  Names seen;
  auto guard = std::make_unique<OperatorListenerGuard>(seen);
  for (int i = 0; i < 10; ++i)
    guard = std::make_unique<OperatorListenerGuard>(seen);  // made before the other goes
  EXPECT_EQ(current_frames()->size(), 1u);
  at::ones({1});
  EXPECT_EQ(seen.names.size(), 1u);
  guard.reset();
  EXPECT_EQ(current_frames(), nullptr);
}

TEST(Operators, SomebodyElsesDebugInfoStaysWhereItIs) {
  Names outer, inner;
  auto outer_guard = std::make_unique<OperatorListenerGuard>(outer);
  {
    c10::DebugInfoGuard theirs(c10::DebugInfoKind::TEST_INFO, std::make_shared<c10::DebugInfoBase>());
    const auto top = c10::ThreadLocalDebugInfo::current();
    {
      OperatorListenerGuard inner_guard(inner);
      at::ones({1});
    }
    EXPECT_EQ(c10::ThreadLocalDebugInfo::current(), top);
    outer_guard.reset();
    at::ones({1});
    EXPECT_NE(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO), nullptr);
  }
  EXPECT_EQ(outer.names.size(), 1u);
  EXPECT_EQ(inner.names.size(), 1u);
  { OperatorListenerGuard next(inner); }
  EXPECT_EQ(current_frames(), nullptr);
}

// As when a node of the backward throws on one of autograd's threads while another still runs.
TEST(Operators, AGuardWaitsForACallOnAThreadThatOutlivesIt) {
  struct Slow : OperatorListener {
    void on_operator(OperatorCall& call) override {
      ++calls;
      inside = true;
      while (!leave) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      call.proceed();
      left = true;
    }
    std::atomic<int> calls = 0;
    std::atomic<bool> inside = false, leave = false, left = false;
  } slow;
  std::atomic<bool> guard_gone = false;
  std::thread worker;
  {
    OperatorListenerGuard guard(slow);
    worker = std::thread([&, state = at::ThreadLocalState()] {
      at::ThreadLocalStateGuard as_the_caller(state);
      at::ones({2});
      while (!guard_gone) std::this_thread::yield();
      at::ones({2});
    });
    while (!slow.inside) std::this_thread::yield();
    slow.leave = true;
  }
  EXPECT_TRUE(slow.left);
  guard_gone = true;
  worker.join();
  EXPECT_EQ(slow.calls, 1) << "nobody is called after its guard";
}

}  // namespace
}  // namespace snug::hooks
