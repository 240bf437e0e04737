#include "snug/plan/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug::plan {
namespace {

// Round rates, so that expected times can be written down.
Hardware machine() {
  return {.name = "round",
          .memory_bytes = 1000,
          .matmul_flops_fp32 = 100,
          .matmul_flops_bf16 = 1000,
          .attention_flops = 500,
          .memory_rate = 10,
          .to_host_rate = 1,
          .to_device_rate = 1,
          .operation_seconds = 0.5};
}

Work work(const std::string& name, double flops, double bytes) {
  return {.name = name, .flops = flops, .bytes = bytes};
}

TEST(Seconds, TakesTheLongerOfArithmeticAndMemory) {
  EXPECT_EQ(seconds(work("mm", 400, 10), machine()), 4.5);
  EXPECT_EQ(seconds(work("mm", 400, 80), machine()), 8.5);
  EXPECT_EQ(seconds(work("add", 0, 20), machine()), 2.5);
  EXPECT_EQ(seconds(work("view", 0, 0), machine()), 0.5);
}

TEST(Seconds, OfAGpuAreAtLeastWhatAskingForItTakes) {
  Hardware gpu = machine();
  gpu.is_gpu = true;
  EXPECT_NEAR(seconds(work("mm", 400, 10), gpu), 4, 1e-5);
  EXPECT_EQ(seconds(work("add", 0, 2), gpu), 0.5);
  EXPECT_EQ(seconds(work("view", 0, 0), gpu), 0) << "nothing is launched";
}

TEST(Seconds, ChoosesTheRateByKindAndPrecision) {
  EXPECT_EQ(seconds({.name = "mm", .flops = 1000, .low_precision = true}, machine()), 1.5);
  EXPECT_EQ(seconds({.name = "sdpa", .flops = 1000, .low_precision = true, .is_attention = true}, machine()),
            2.5);
  // The attention rate is that of 16 bits.
  EXPECT_EQ(seconds({.name = "sdpa", .flops = 1000, .is_attention = true}, machine()), 10.5);
}

TEST(Seconds, GrowWithFlopsAndBytesOnEveryPreset) {
  for (const Hardware& hardware : presets()) {
    for (const bool low_precision : {false, true}) {
      for (const bool attention : {false, true}) {
        double before = 0;
        for (double flops = 1; flops < 1e18; flops *= 10) {
          const double now = seconds({"mm", flops, 1e6, low_precision, attention}, hardware);
          EXPECT_GE(now, before) << hardware.name;
          EXPECT_LE(now, seconds({"mm", flops, 1e9, low_precision, attention}, hardware)) << hardware.name;
          before = now;
        }
        EXPECT_GT(before, seconds({"mm", 1, 1e6, low_precision, attention}, hardware)) << hardware.name;
      }
    }
  }
}

TEST(Seconds, AreABugOfOursForAmountsThatCannotBe) {
  for (double amount : {-1.0, HUGE_VAL, std::nan("")}) {
    EXPECT_THROW(seconds(work("mm", amount, 0), machine()), InternalError);
    EXPECT_THROW(seconds(work("mm", 0, amount), machine()), InternalError);
    MeasuredCosts costs(machine());
    EXPECT_THROW(costs.add(work("mm", 0, amount), 1), InternalError);
    EXPECT_THROW(costs(work("mm", 0, amount)), InternalError);
  }
  EXPECT_NE(testing::message_of<InternalError>([] {
              seconds(work("aten::mm", -1, 0), machine());
            }).find("aten::mm is said to take -1 flops"),
            std::string::npos);
}

TEST(MeasuredCosts, AreTheModelAtFirst) {
  const MeasuredCosts costs(machine());
  EXPECT_EQ(costs.size(), 0u);
  EXPECT_EQ(costs(work("mm", 400, 10)), 4.5);
}

TEST(MeasuredCosts, GiveTheMeanOfTheSameWork) {
  MeasuredCosts costs(machine());
  for (double measured : {3.0, 4.0, 8.0}) costs.add(work("mm", 400, 10), measured);
  EXPECT_EQ(costs.size(), 3u);
  EXPECT_DOUBLE_EQ(costs(work("mm", 400, 10)), 5);
}

TEST(MeasuredCosts, ScaleTheModelAsTheNearestOfTheSameName) {
  MeasuredCosts costs(machine());
  costs.add(work("mm", 50, 0), 2);    // the model says 1
  costs.add(work("mm", 350, 0), 12);  // 4
  costs.add(work("add", 0, 5), 7);    // 1
  EXPECT_DOUBLE_EQ(costs(work("mm", 750, 0)), 8 * 3);
  EXPECT_DOUBLE_EQ(costs(work("mm", 50, 1)), 1 * 2);  // other bytes, so other work
  EXPECT_DOUBLE_EQ(costs(work("add", 0, 15)), 2 * 7);
}

TEST(MeasuredCosts, BeginWithWhatTheHardwareFileHas) {
  Hardware hardware = machine();
  hardware.operators = {{work("mm", 50, 0), 2}, {work("add", 0, 5), 7}};
  const MeasuredCosts costs(hardware);
  EXPECT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs(work("mm", 50, 0)), 2);
}

TEST(MeasuredCosts, OfAGpuTakeNothingForAView) {
  Hardware gpu = machine();
  gpu.is_gpu = true;
  MeasuredCosts costs(gpu);
  costs.add(work("view", 0, 0), 2);
  EXPECT_EQ(costs(work("view", 0, 0)), 0);
}

TEST(MeasuredCosts, ScaleUnknownNamesByTheMedianOfAll) {
  MeasuredCosts costs(machine());
  costs.add(work("mm", 50, 0), 2);
  costs.add(work("add", 0, 5), 4);
  EXPECT_DOUBLE_EQ(costs(work("mul", 0, 35)), 4 * 3);  // of two ratios, the middle
  costs.add(work("exp", 0, 5), 100);
  EXPECT_DOUBLE_EQ(costs(work("mul", 0, 35)), 4 * 4);
}

TEST(MeasuredCosts, FindTheMedianInAnyOrder) {
  for (const int step : {1, 37, 64, 100}) {  // 101 is prime: each visits every number once
    MeasuredCosts costs(machine());
    for (int i = 0; i < 101; ++i) costs.add(work("mm", 50, 0), 1 + i * step % 101);
    EXPECT_DOUBLE_EQ(costs(work("other", 150, 0)), 2 * 51) << step;
    costs.add(work("mm", 50, 0), 1000);
    EXPECT_DOUBLE_EQ(costs(work("other", 150, 0)), 2 * 51.5) << step;
  }
}

TEST(MeasuredCosts, IgnoreWhatNoClockMeasures) {
  MeasuredCosts costs(machine());
  for (double measured : {0.0, -1.0, HUGE_VAL, -HUGE_VAL, std::nan("")})
    costs.add(work("mm", 400, 10), measured);
  EXPECT_EQ(costs.size(), 0u);
  EXPECT_EQ(costs(work("mm", 400, 10)), 4.5);
}

TEST(MeasuredCosts, StayFiniteAfterAbsurdTimes) {
  MeasuredCosts costs(machine());
  for (int i = 0; i < 3; ++i) costs.add(work("view", 0, 0), std::numeric_limits<double>::max());
  EXPECT_EQ(costs(work("view", 0, 0)), std::numeric_limits<double>::max());
  EXPECT_EQ(costs(work("mm", 400, 10)), 4.5);  // the ratio overflowed, so it scales nothing
}

TEST(MeasuredCosts, LearnNoRatioWhereTheModelSaysZero) {
  Hardware hardware = machine();
  hardware.operation_seconds = 0;
  MeasuredCosts costs(hardware);
  costs.add(work("view", 0, 0), 2);
  EXPECT_EQ(costs(work("view", 0, 0)), 2);
  EXPECT_EQ(costs(work("view", 0, 20)), 2);
  EXPECT_EQ(costs(work("mm", 400, 10)), 4);
}

}  // namespace
}  // namespace snug::plan
