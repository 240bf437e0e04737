// What a device needs beside tensors, and what is decided for sketched steps. Steps under their plans run in
// tests/train/plan_test.cpp.
#include "snug/plan/planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "snug/base/bytes.h"
#include "snug/plan/fitted.h"
#include "tests/plan/sketched_step.h"

namespace snug::plan {
namespace {

TEST(Overhead, PinnedHostMemoryTakesPageTablesOnAGpu) {
  const Overhead gpu = overhead_of(preset("h200")), cpu = overhead_of(preset("cpu"));
  EXPECT_EQ(gpu.outside_with(0), preset("h200").outside_bytes);
  for (const std::uint64_t host : {1_MiB, 1_GiB, 10_GiB, 100_GiB}) {
    const std::uint64_t tables = gpu.outside_with(host) - gpu.outside_bytes;
    EXPECT_GE(tables, host / 512 + 2_MiB) << host;
    EXPECT_LE(tables, host / 512 + 4_MiB) << host;
    EXPECT_EQ(gpu.on_top_of(1_GiB, host), gpu.on_top_of(1_GiB) + tables);
    EXPECT_EQ(cpu.on_top_of(1_GiB, host), 1_GiB) << "nothing is pinned";
  }
}

Planner planner_for(const char* name, const Hardware& hardware, double passes = 1) {
  return Planner({{.model = model_of(name, hardware, passes)}}, overhead_of(hardware));
}

TEST(Planner, MoreMemoryIsNeverSlowerAndWhatIsMissingIsEnough) {
  for (const char* name : kSketches) {
    const Planner planner = planner_for(name, preset("cpu"));
    const std::uint64_t plain = planner.plain().peak_bytes;
    double last = std::numeric_limits<double>::infinity();
    for (std::uint64_t budget = plain / 20; budget <= plain + plain / 10; budget += plain / 100) {
      const Decision decision = planner.decide(budget);
      EXPECT_EQ(decision.fits, decision.missing_bytes == 0);
      EXPECT_GE(decision.taken.seconds, decision.bound_seconds);
      if (decision.fits) {
        EXPECT_LE(decision.taken.peak_bytes, budget) << name;
        EXPECT_LE(decision.taken.seconds, last) << name;
        last = decision.taken.seconds;
      } else {
        EXPECT_TRUE(planner.decide(budget + decision.missing_bytes).fits);
        EXPECT_FALSE(planner.decide(budget + decision.missing_bytes - 1).fits);
      }
    }
    EXPECT_EQ(last, planner.plain().step_seconds) << "what fits is left as it is";
  }
}

TEST(Planner, LeversLeadFromThePlainStepToThePlan) {
  for (const char* name : kSketches) {
    const Planner planner = planner_for(name, preset("h200"));
    for (const Offer& offer : planner.offers()) {
      const Decision decision = planner.about(offer, offer.peak_bytes);
      const std::uint64_t saved =
          std::accumulate(decision.levers.begin(), decision.levers.end(), std::uint64_t{0},
                          [](std::uint64_t sum, const Lever& lever) { return sum + lever.saved_bytes; });
      EXPECT_GE(saved + decision.taken.peak_bytes, decision.plain.peak_bytes) << name;
      EXPECT_TRUE(decision.fits);
    }
  }
}

TEST(Planner, TheLeanestPlanWithinASlowdownIsFastEnoughAndTheNextLeanerIsNot) {
  const Planner planner = planner_for("llama_on_cpu", preset("cpu"), 2);
  for (const double slowdown : {1.0, 1.02, 1.1, 1.3}) {
    const Offer& offer = planner.leanest_within(slowdown);
    EXPECT_LE(offer.seconds, slowdown * planner.plain().step_seconds);
    for (const Offer& other : planner.offers())
      EXPECT_TRUE(other.peak_bytes >= offer.peak_bytes ||
                  other.seconds > slowdown * planner.plain().step_seconds);
  }
}

TEST(DecideWithin, TheFastestPlanThatTheAllocatorHasRoomForIsTaken) {
  const Hardware hardware = preset("h200");
  Planner planner = planner_for("llama_on_gpu", hardware);
  const auto need = [&](const Offer& offer) {
    const Reserved found = reserved(*planner.split(offer).model, offer.chosen, {hardware.memory_bytes});
    return planner.overhead().outside_with(offer.host_bytes) + std::max(found.bytes, found.needed_limit);
  };
  const std::uint64_t least = need(planner.offers().front()), most = need(planner.offers().back());
  ASSERT_LT(least, most);
  std::uint64_t plain = 0;
  for (int i = 0; i <= 10; ++i) {
    const std::uint64_t budget = least + (most - least) / 10 * static_cast<std::uint64_t>(i) + 10;
    const Decision decision = decide_within(planner, budget, {hardware.memory_bytes});
    EXPECT_TRUE(decision.fits) << budget;
    EXPECT_LE(need(decision.taken), budget);
    for (const Offer& other : planner.offers())
      EXPECT_TRUE(other.seconds >= decision.taken.seconds || need(other) > budget) << budget;
    EXPECT_NEAR(static_cast<double>(decision.taken.peak_bytes),
                static_cast<double>(planner.overhead().outside_with(decision.taken.host_bytes) +
                                    reserved(*planner.split(decision.taken).model, decision.taken.chosen,
                                             {hardware.memory_bytes})
                                        .bytes),
                1)
        << "it comes from a share";
    EXPECT_TRUE(i == 0 || decision.plain.peak_bytes == plain) << "whatever the budget";
    plain = decision.plain.peak_bytes;
  }
  EXPECT_FALSE(decide_within(planner, least / 2, {hardware.memory_bytes}).fits);
}

}  // namespace
}  // namespace snug::plan
