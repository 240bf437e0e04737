#include "snug/plan/collectives.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/plan/sketched_step.h"

namespace snug::plan {
namespace {

using What = Collective::What;
constexpr PeerLinks kPeers{.peer_rate = 100, .network_rate = 10};

TEST(CollectiveSeconds, EveryRankSendsAllButItsOwnPiece) {
  EXPECT_EQ(sent_bytes(400, {.count = 4, .per_machine = 4}), 300u);
  EXPECT_EQ(sent_bytes(400, {.count = 1, .per_machine = 1}), 0u);
  EXPECT_EQ(collective_seconds(400, {.count = 4, .per_machine = 4}, kPeers), 3);
  EXPECT_EQ(collective_seconds(400, {}, kPeers), 0);
}

TEST(CollectiveSeconds, MachinesAreJoinedByAllOfTheirNetworks) {
  const auto with = [](int per_machine) {
    return collective_seconds(1600, {.count = 16, .per_machine = per_machine}, kPeers);
  };
  EXPECT_EQ(with(1), 1500 / 10.0);
  EXPECT_EQ(with(4), 1500 / 40.0);
  EXPECT_EQ(with(16), 1500 / 100.0) << "one machine has no network in the way";
  EXPECT_EQ(collective_seconds(1600, {.count = 16, .per_machine = 8}, {.peer_rate = 20, .network_rate = 10}),
            1500 / 20.0)
      << "the ranks' own links are the slower ones";
}

TEST(CollectiveSeconds, CardsThatRanksShareAreFewerAndTheSmallestMachineHasTheFewest) {
  const PeerLinks shared{.peer_rate = 100, .network_rate = 10, .ranks_per_network = 4};
  EXPECT_EQ(collective_seconds(1600, {.count = 16, .per_machine = 8}, shared), 1500 / 20.0);
  EXPECT_EQ(collective_seconds(1600, {.count = 16, .per_machine = 2}, shared), 1500 / 10.0)
      << "one card at least";
  EXPECT_EQ(collective_seconds(2000, {.count = 20, .per_machine = 8}, shared), 1900 / 10.0)
      << "the last machine has 4 ranks, so one card";
}

TEST(CollectiveSeconds, GpusOverPciExpressHaveLongerHopsThanOverNvlink) {
  const PeerLinks nvlink = peer_links_of(preset("h100")), pci = peer_links_of(preset("rtx4090"));
  EXPECT_LT(nvlink.peer_hop_seconds, pci.peer_hop_seconds);
  EXPECT_EQ(nvlink.network_hop_seconds, pci.network_hop_seconds);
  EXPECT_EQ(nvlink.ranks_per_network, 1);
  EXPECT_EQ(pci.ranks_per_network, 8);
}

TEST(CollectiveSeconds, EveryHopTakesItsTime) {
  const PeerLinks slow{.peer_rate = 1,
                       .network_rate = 1,
                       .start_seconds = 1000,
                       .peer_hop_seconds = 1,
                       .network_hop_seconds = 100};
  EXPECT_EQ(collective_seconds(0, {.count = 10, .per_machine = 4}, slow), 1000 + 2 * 100 + 7 * 1);
}

// Stage 3: weights a region ahead in both directions, gradients a region behind.
StepCollectives three(bool each_pass) {
  std::vector<Collective> all;
  for (const auto& [region, weights, gradients] :
       {std::tuple("embed", 200, 20), std::tuple("layer", 400, 40), std::tuple("head", 600, 60)}) {
    all.push_back({region, What::Weights, static_cast<std::uint64_t>(weights), each_pass});
    all.push_back({region, What::Gradients, static_cast<std::uint64_t>(gradients), each_pass});
  }
  return {all, {.count = 2, .per_machine = 2}, {.peer_rate = 1}};
}

TEST(StepCollectives, ARegionRunsBesideWhatItsNeighboursNeed) {
  const StepCollectives step = three(true);
  const auto beside = [&](const char* region) {
    const auto [forward, backward] = step.in_each_pass(region);
    return std::pair(forward, backward);
  };
  EXPECT_EQ(beside("embed"), std::pair(200.0, 20.0));        // layer's weights; layer's gradients
  EXPECT_EQ(beside("layer"), std::pair(300.0, 30.0 + 100));  // head's; and embed's weights
  EXPECT_EQ(beside("head"), std::pair(0.0, 200.0));          // layer's weights, for the backward
  EXPECT_EQ(beside("no such region"), std::pair(0.0, 0.0));
  EXPECT_EQ(step.once("layer").forward, 0);
}

TEST(StepCollectives, WhatRunsBesideNothingAndTheTotalOfAStep) {
  const StepCollectives step = three(true);
  for (const double passes : {1.0, 3.0}) {
    EXPECT_EQ(step.alone(passes), 100 + 10 * passes);
    double beside = 0;
    for (const char* region : {"embed", "layer", "head"})
      beside += step.in_each_pass(region).forward + step.in_each_pass(region).backward;
    EXPECT_EQ(step.seconds(passes), step.alone(passes) + passes * beside);
    EXPECT_EQ(step.sent_bytes(passes), static_cast<std::uint64_t>(step.seconds(passes))) << "a byte a second";
  }
}

TEST(StepCollectives, WhatIsDoneOnceAStepIsBesideTheFirstForwardAndTheLastBackward) {
  const StepCollectives step = three(false);
  EXPECT_EQ(step.once("embed").forward, 200);
  EXPECT_EQ(step.once("embed").backward, 20);
  EXPECT_EQ(step.once("head").forward, 0);
  EXPECT_EQ(step.in_each_pass("layer").backward, 0);
  EXPECT_EQ(step.alone(7), 100 + 10);
  EXPECT_EQ(step.seconds(7), step.seconds(1));
}

TEST(StepCollectives, OneRankSendsNothing) {
  const StepCollectives none({{"layer", What::Weights, 400, true}}, {}, {.peer_rate = 1, .start_seconds = 9});
  EXPECT_EQ(none.seconds(3), 0);
  EXPECT_EQ(none.sent_bytes(3), 0u);
}

TEST(StepCollectives, WhatARegionAsksForTogetherHasEachHopsLatencyOnce) {
  const PeerLinks slow{.peer_rate = 1, .start_seconds = 1000, .peer_hop_seconds = 10};
  const Ranks two{.count = 2, .per_machine = 2};
  const auto step = [&](std::vector<Collective> all) { return StepCollectives(all, two, slow).seconds(1); };
  EXPECT_EQ(step({{"layer", What::Gradients, 4, true}}), 1000 + 10 + 2);
  EXPECT_EQ(step({{"layer", What::Gradients, 4, true}, {"layer", What::Gradients, 6, true}}), 1000 + 10 + 5);
  EXPECT_EQ(step({{"layer", What::Gradients, 4, true}, {"next", What::Gradients, 6, true}}), 2 * 1010 + 5);
}

TEST(StepCollectives, WhatIsAskedForAfterTheFirstRoundHasItsOwnLatencies) {
  const PeerLinks slow{.peer_rate = 1, .start_seconds = 1000, .peer_hop_seconds = 10};
  const StepCollectives stage_0(
      {{"layer", What::Gradients, 4, false}, {"layer", What::Gradients, 4, false, /*is_second=*/true}},
      {.count = 2, .per_machine = 2}, slow);
  EXPECT_EQ(stage_0.seconds(1), 2 * (1000 + 10 + 2));
  EXPECT_EQ(stage_0.sent_bytes(3), 4u);
}

Streamed ranks_of(const Sketch& sketch, int stage, std::uint64_t bytes) {
  Streamed streamed{.ranks = {.count = 8, .per_machine = 8}};
  std::vector<std::string> seen;
  for (const auto& call : sketch.calls) {
    const std::string& region = call.tape.region;
    if (std::ranges::find(seen, region) != seen.end()) continue;
    seen.push_back(region);
    streamed.collectives.push_back({region, What::Weights, bytes, stage == 3});
    streamed.collectives.push_back({region, What::Gradients, bytes, stage >= 2});
  }
  return streamed;
}

std::shared_ptr<const StepModel> model_with(int stage, double passes, std::uint64_t bytes, double slowdown) {
  Hardware hardware = preset("h200");
  Links links = links_of(hardware);
  links.peers = {.peer_rate = 7e9, .slowdown = slowdown};  // 8e9 bytes: a second
  Sketch sketch = load_step("llama_on_gpu");
  const Streamed streamed = ranks_of(sketch, stage, bytes);
  return std::make_shared<const StepModel>(
      std::move(sketch), passes, [=](const trace::Work& work) { return seconds(work, hardware); }, links,
      streamed);
}

TEST(StepModel, CollectivesThatAreLongerThanTheStepAreItsTime) {
  for (const double passes : {1.0, 4.0})
    for (const int stage : {1, 2, 3}) {
      const auto model = model_with(stage, passes, 8'000'000'000, 0);
      const auto together = model->together(model->all_kept());
      const double step = model->seconds(model->all_kept());
      EXPECT_GT(together.seconds, 10) << stage;
      EXPECT_GE(step, together.seconds * (1 - 1e-9)) << stage;
      EXPECT_LT(step, together.seconds + 1) << "little of the step itself hides nothing";
      EXPECT_GE(together.cost_seconds, 0.9 * together.seconds);
      EXPECT_EQ(together.sent_bytes, static_cast<std::uint64_t>(std::lround(together.seconds * 7e9)));
    }
}

TEST(StepModel, HiddenCollectivesCostWhatTheySlowDown) {
  const std::uint64_t bytes = 8'000;  // microseconds
  const auto hidden = model_with(3, 1, bytes, 0)->together(model_with(3, 1, bytes, 0)->all_kept());
  const auto model = model_with(3, 1, bytes, 0.5);
  const auto slowing = model->together(model->all_kept());
  const double alone = 2e-6;  // the first region's weights and gradients
  EXPECT_NEAR(hidden.cost_seconds, alone, 1e-8);
  EXPECT_NEAR(slowing.cost_seconds, alone + 0.5 * (slowing.seconds - alone), 1e-8);
}

TEST(StepModel, OneRankHasNoCollectives) {
  const auto model = model_of("llama_on_gpu", preset("h200"));
  const auto together = model->together(model->all_kept());
  EXPECT_EQ(together.sent_bytes, 0u);
  EXPECT_EQ(together.cost_seconds, 0);
}

}  // namespace
}  // namespace snug::plan
