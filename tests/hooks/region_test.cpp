#include "snug/hooks/region.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "snug/hooks/operators.h"
#include "tests/hooks/region_log.h"

namespace snug::hooks {
namespace {

TEST(Region, BackwardVisitsTheRegionsInReverse) {
  TwoLayers model;
  Log log;
  RegionListenerGuard guard(log);
  model.loss().backward();
  EXPECT_EQ(log.lines, kForward + kBackward);
  EXPECT_EQ(log.ready, (std::vector<const c10::TensorImpl*>{model.b.unsafeGetTensorImpl(),
                                                            model.a.unsafeGetTensorImpl()}));
}

TEST(Region, OperatorsOfTheBackwardRunInTheRegionOfTheirForward) {
  struct Where : OperatorListener {
    void on_operator(OperatorCall& call) override {
      call.proceed();
      if (call.op.schema().name() == "aten::tanh_backward") regions.push_back(region_name(current_region()));
    }
    std::vector<std::string> regions;
  } where;
  TwoLayers model;
  Log log;
  RegionListenerGuard guard(log);
  OperatorListenerGuard operators(where);
  model.loss().backward();
  EXPECT_EQ(where.regions, (Lines{"second", "first"}));
  EXPECT_EQ(current_region(), 0u);
}

TEST(Region, NestedRegionsReturnToTheOuterOne) {
  Log log;
  RegionListenerGuard guard(log);
  at::Tensor x = at::ones({2}).requires_grad_();
  at::Tensor y;
  {
    RegionScope outer("outer");
    y = x.sin();
    {
      RegionScope inner("inner");
      EXPECT_EQ(region_name(current_region()), "inner");
      y = y.cos();
    }
    EXPECT_EQ(region_name(current_region()), "outer");
    y = y.exp();
  }
  log.lines.clear();
  y.sum().backward();
  EXPECT_EQ(log.lines, (Lines{"backward outer", "end backward outer", "backward inner", "end backward inner",
                              "backward outer", "end backward outer"}));
}

TEST(Region, ARetainedGraphIsVisitedAgain) {
  TwoLayers model;
  Log log;
  RegionListenerGuard guard(log);
  at::Tensor loss = model.loss();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_EQ(log.lines, kForward + kBackward + kBackward);
}

TEST(Region, AutogradGradIsVisitedWithoutAccumulation) {
  TwoLayers model;
  Log log;
  RegionListenerGuard guard(log);
  torch::autograd::grad({model.loss()}, {model.a, model.b});
  EXPECT_EQ(log.lines, kForward + kBackward);
  EXPECT_TRUE(log.ready.empty());
}

TEST(Region, ARegionOpenedInsideTheBackwardLeavesLaterNodesAlone) {
  at::Tensor w = at::randn({3, 3}).requires_grad_();
  Log log;
  RegionListenerGuard guard(log);
  at::Tensor x;
  {
    RegionScope scope("layer");
    x = at::tanh(w);
  }
  x.register_hook([](const at::Tensor& gradient) {
    RegionScope scope("inside the hook");
    return gradient * 2;
  });
  x.sum().backward();
  log.lines.clear();
  w.pow(2).sum().backward();  // outside every region
  EXPECT_EQ(log.lines, Lines{});
}

TEST(Region, AnExceptionInTheForwardLeavesTheRegion) {
  Log log;
  RegionListenerGuard guard(log);
  try {
    RegionScope scope("thrown out of");
    throw std::runtime_error("user code");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(current_region(), 0u);
  EXPECT_EQ(log.lines, (Lines{"forward thrown out of", "end forward thrown out of"}));
}

TEST(Region, EndingARegionEndsWhatWasLeftOpenInside) {
  Log log;
  RegionListenerGuard guard(log);
  const RegionToken outer = begin_region("outer");
  const RegionToken inner = begin_region("inner");
  EXPECT_EQ(region_name(current_region()), "inner");
  end_region(outer);  // a forward that threw skipped the end of the inner one
  const Lines all = {"forward outer", "forward inner", "end forward inner", "end forward outer"};
  EXPECT_EQ(log.lines, all);
  EXPECT_EQ(current_region(), 0u);
  end_region(inner);
  end_region(outer);
  EXPECT_EQ(log.lines, all) << "each ends once";
}

TEST(Region, ATokenThatHasEndedLeavesALaterRegionAlone) {
  const RegionToken before = begin_region("before");
  end_region(before);
  const RegionToken now = begin_region("before");
  end_region(before);
  EXPECT_EQ(region_name(current_region()), "before");
  end_region(now);
  EXPECT_EQ(current_region(), 0u);
}

TEST(Region, ScopesMayEndInAnyOrder) {
  Log log;
  RegionListenerGuard guard(log);
  auto outer = std::make_unique<RegionScope>("outer");
  auto inner = std::make_unique<RegionScope>("inner");
  outer.reset();
  EXPECT_EQ(current_region(), 0u);
  {
    RegionScope next("next");
    inner.reset();
    EXPECT_EQ(region_name(current_region()), "next");
  }
  EXPECT_EQ(log.lines, (Lines{"forward outer", "forward inner", "end forward inner", "end forward outer",
                              "forward next", "end forward next"}));
}

TEST(Region, ARegionBegunInTheForwardMayEndInTheBackward) {
  Log log;
  RegionListenerGuard guard(log);
  at::Tensor x = at::ones({2}).requires_grad_();
  const RegionToken token = begin_region("open");
  at::Tensor y = x.sin();
  y.register_hook([token](const at::Tensor& gradient) {
    end_region(token);
    return gradient;
  });
  y.sum().backward();
  EXPECT_EQ(current_region(), 0u);
  log.lines.clear();
  x.pow(2).sum().backward();  // outside every region
  EXPECT_EQ(log.lines, Lines{});
}

TEST(Region, EachBackwardIsHeardToBegin) {
  struct Begins : RegionListener {
    void backward_begins() override { ++count; }
    int count = 0;
  } begins;
  RegionListenerGuard guard(begins);
  at::Tensor x = at::ones({2}).requires_grad_();
  x.sin().sum().backward();  // outside every region
  EXPECT_EQ(begins.count, 1);
  TwoLayers().loss().backward();
  EXPECT_EQ(begins.count, 2);
}

TEST(Region, ABackwardOnAnotherThreadFindsTheRegionsOfTheForward) {
  TwoLayers model;
  at::Tensor loss = model.loss();
  Lines lines;
  std::thread([&] {
    Log log;
    RegionListenerGuard guard(log);
    loss.backward();
    lines = log.lines;
  }).join();
  EXPECT_EQ(lines, kBackward);
}

TEST(Region, ThreadsDoNotMixTheirRanges) {
  auto run = [](const std::string& name, Lines& lines) {
    Log log;
    RegionListenerGuard guard(log);
    for (int i = 0; i < 100; ++i) {
      at::Tensor x = at::ones({2}).requires_grad_();
      at::Tensor y;
      {
        RegionScope scope(name);
        y = x.sin().cos();
      }
      y.sum().backward();
    }
    lines = log.lines;
  };
  Lines left, right;
  std::thread a(run, "left", std::ref(left)), b(run, "right", std::ref(right));
  a.join();
  b.join();
  ASSERT_EQ(left.size(), 400u);
  ASSERT_EQ(right.size(), 400u);
  for (const auto& line : left) EXPECT_NE(line.find("left"), std::string::npos);
  for (const auto& line : right) EXPECT_NE(line.find("right"), std::string::npos);
}

TEST(Region, AnAccumulationCountsWhereItsParameterIsBound) {
  struct Home : RegionListener {
    void gradient_ready(const at::Tensor&) override { regions.push_back(region_name(current_region())); }
    Lines regions;
  } home;
  at::Tensor tied = at::randn({3, 3}).requires_grad_();
  bind_parameters(region_id("embed"), {tied});
  EXPECT_EQ(region_name(region_of_parameter(tied)), "embed");
  RegionListenerGuard guard(home);
  at::Tensor loss;
  {
    RegionScope scope("head");
    loss = tied.mm(tied).sum();
  }
  loss.backward();
  EXPECT_EQ(home.regions, Lines{"embed"});
}

TEST(Region, ABindingDiesWithItsParameter) {
  {
    at::Tensor gone = at::ones({1}).requires_grad_();
    bind_parameters(region_id("gone"), {gone});
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(region_of_parameter(at::ones({1})), 0u);
}

TEST(Region, NothingIsWatchedWithoutAListener) {
  TwoLayers model;
  Log log;
  { RegionListenerGuard guard(log); }
  model.loss().backward();
  EXPECT_TRUE(log.lines.empty());
}

}  // namespace
}  // namespace snug::hooks
