// What a device needs beside tensors, and what is decided for sketched steps. Steps under their plans run in
// tests/train/plan_test.cpp.
#include "snug/plan/planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/plan/fitted.h"
#include "tests/plan/sketched_step.h"
#include "tests/support/temporary_folder.h"

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
  const auto model = model_of(name, hardware, passes);  // within the braces g++ 12 warns of the setting
  return Planner({{.model = model}}, overhead_of(hardware));
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

// Levers that nobody carries out: the step of a file, with so much of what it found and so much of its time.
constexpr LeverKind kThird{"third", 0, "a third of {value}"};
constexpr LeverKind kInvented[] = {kMicroBatch, kThird, kHeadChunks};

Candidate invented(std::int64_t micro_batch, std::int64_t third, std::int64_t head_chunks) {
  const Hardware hardware = preset("cpu");
  Sketch sketch = load_step("llama_on_cpu");
  const auto less = static_cast<std::uint64_t>(4 / micro_batch + 2 * third + head_chunks);
  for (Sketch::Block& block : sketch.blocks)
    if (block.birth < sketch.begin) block.bytes /= less;
  return {{.levers = {{"head_chunks", head_chunks}, {"third", third}, {"micro_batch", micro_batch}}},
          std::make_shared<const StepModel>(
              std::move(sketch), 1,
              [&](const trace::Work& work) { return seconds(work, hardware) * static_cast<double>(less); },
              links_of(hardware))};
}

std::vector<std::string> names(const std::vector<Lever>& levers) {
  std::vector<std::string> names;
  for (const Lever& lever : levers) names.push_back(lever.name);
  return names;
}

TEST(Planner, ALeverIsPlannedPulledInItsTurnAndWrittenDownByItsNameAlone) {
  const Planner planner({invented(4, 0, 0), invented(2, 0, 0), invented(2, 3, 0), invented(2, 3, 5)}, {},
                        kInvented);
  const Decision decision = planner.decide(1);
  ASSERT_EQ(planner.candidate(decision.taken).setting[kThird], 3) << "it is the leanest";
  EXPECT_EQ(names(decision.levers),
            (std::vector<std::string>{"micro_batch", "third", "head_chunks", "recompute"}));
  std::uint64_t saved = 0;
  for (const Lever& lever : decision.levers) saved += static_cast<std::uint64_t>(lever.saved_bytes);
  EXPECT_EQ(saved, decision.plain.peak_bytes - decision.taken.peak_bytes);
  const auto kept = [&](std::size_t candidate) {
    const StepModel& model = *planner.candidates()[candidate].model;
    return model.peak_bytes(model.all_kept());
  };
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(decision.levers[i].saved_bytes, kept(i) - kept(i + 1));

  const Plan plan = planner.write_down(decision, Json::object());
  const Json json = to_json(plan);
  EXPECT_EQ(json["third"], 3);
  EXPECT_EQ(plan_from_json(json, "a plan", kInvented), plan);
  Json usual = json;  // as if of the levers that there are
  for (const LeverKind& kind : kLevers) usual.emplace(kind.name, kind.plain);
  EXPECT_NE(testing::message_of<Error>([&] { plan_from_json(usual, "a plan"); }).find("third"),
            std::string::npos);
}

TEST(Planner, WhatASettingSavesThatIsNoCandidateIsCountedWithTheNextLever) {
  const Planner planner({invented(4, 0, 0), invented(2, 3, 0)}, {}, kInvented);
  EXPECT_EQ(names(planner.decide(1).levers), (std::vector<std::string>{"third", "recompute"}));
}

// Of two that differ only in it, the one on the way is that of the plan: else recomputation would cost what
// it saves.
TEST(Planner, WhatTheHostStepsIsNoCostOfAnotherLever) {
  constexpr LeverKind kinds[] = {kMicroBatch, kSteppedOnHost, kThird, kHeadChunks};
  const auto stepped = [](std::int64_t percent, Candidate candidate) {
    candidate.setting.levers[kSteppedOnHost.name] = percent;
    candidate.setting.levers[kHeadChunks.name] = 0;  // only faster or slower
    return candidate;
  };
  const Candidate slow = stepped(0, invented(4, 2, 7)), fast = stepped(50, invented(4, 2, 3));
  const auto saved_by_third = [&](const Candidate& first, const Candidate& second) {
    const Planner planner({stepped(0, invented(4, 0, 0)), first, second}, {}, kinds);
    const auto levers = planner.decide(1).levers;
    return levers.at(0).saved_bytes;
  };
  EXPECT_EQ(saved_by_third(slow, fast), saved_by_third(fast, slow));
}

// It goes with the placement: each has its own.
TEST(Planner, OnTheWayToThePlanTheHostStepsAsMuchAsEachCandidateHasIt) {
  constexpr LeverKind kinds[] = {kMicroBatch, kSteppedOnHost, kThird, kHeadChunks};
  const auto stepped = [](std::int64_t percent, Candidate candidate) {
    candidate.setting.levers[kSteppedOnHost.name] = percent;
    return candidate;
  };
  const Planner planner(
      {stepped(0, invented(4, 0, 0)), stepped(45, invented(4, 2, 0)), stepped(50, invented(4, 2, 3))}, {},
      kinds);
  EXPECT_EQ(names(planner.decide(1).levers), (std::vector<std::string>{"third", "head_chunks", "recompute"}));
}

TEST(Planner, ALeverThatItDoesNotKnowIsAnError) {
  EXPECT_EQ(testing::message_of<Error>([] { Planner({invented(4, 0, 0)}); }),
            R"(a lever that there is not: {"gradients_on_host":0,"head_chunks":0,"micro_batch":4,)"
            R"("states_on_host":0,"stepped_on_host":0,"third":0,"weights_on_host":0,"accumulation":1})");
}

TEST(Setting, SaysInWordsWhatIsNotAsUsual) {
  const Setting setting{.levers = {{kMicroBatch.name, 4}, {kHeadChunks.name, 16}}, .accumulation = 2};
  EXPECT_EQ(text(setting), "micro-batch 4 x 2, logits in 16 pieces");
  EXPECT_EQ(text(setting, "head_chunks"), "logits in 16 pieces");
  EXPECT_EQ(text(Setting{}), "");
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
    const Reserved found = reserved(*planner.candidate(offer).model, offer.chosen, {hardware.memory_bytes});
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
                                    reserved(*planner.candidate(decision.taken).model, decision.taken.chosen,
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
