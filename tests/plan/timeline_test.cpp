#include "snug/plan/timeline.h"

#include <gtest/gtest.h>

#include "snug/plan/step_allocations.h"
#include "tests/plan/sketched_step.h"
#include "tests/support/live_log.h"

namespace snug::plan {
namespace {

// x -> a -> b, of which autograd saves a: its operation takes 7 bytes beside it. The backward asks for a at
// moment 3 and makes a gradient at moment 4.
Sketch small_step() {
  Sketch sketch{.moments = 5,
                .begin = 1,
                .blocks = {{.bytes = 100, .birth = 0},
                           {.bytes = 10, .birth = 1, .death = 3},
                           {.bytes = 20, .birth = 2, .death = 4},
                           {.bytes = 5, .birth = 4, .death = 5}},
                .operators = {{.name = "f"}, {.name = "g"}}};
  Sketch::Call call{.blocks = {0, 1, 2},
                    .operators = {0, 1},
                    .begins = {1, 2},
                    .ends = {2, 3},
                    .saved_at = {1},
                    .releases = {5},
                    .nodes = {{.unpacks = {3}, .end = 5}},
                    .forward_begin = 1,
                    .forward_end = 3,
                    .backward_begin = 3,
                    .backward_end = 5};
  call.tape = {.region = "r",
               .operations = {{.name = "f", .reads = {0}, .results = {1}, .peak_bytes = 17},
                              {.name = "g", .reads = {1}, .results = {2}, .peak_bytes = 20}},
               .values = {{.bytes = 100}, {.operation = 0, .bytes = 10}, {.operation = 1, .bytes = 20}},
               .saves = {1},
               .unpacks = {{1}}};
  sketch.calls = {call};
  return sketch;
}

std::vector<std::uint64_t> live(const Sketch& sketch, const std::vector<Fate>& fates) {
  const Timeline timeline(sketch);
  const Profile profile = timeline.profile(0, fates);
  const Profile* const profiles[] = {&profile};
  return timeline.live(profiles);
}

TEST(Timeline, WhatIsKeptLivesUntilItIsReleased) {
  using Bytes = std::vector<std::uint64_t>;
  EXPECT_EQ(Timeline(small_step()).live({}), (Bytes{100, 110, 130, 120, 105})) << "nothing is kept";
  EXPECT_EQ(live(small_step(), {Fate::Keep, Fate::Keep, Fate::Keep}), (Bytes{100, 110, 130, 130, 115}));
}

TEST(Timeline, WhatSomebodyElseHoldsDoesNotLeave) {
  Sketch sketch = small_step();
  sketch.calls[0].tape.values[1].held = true;
  const std::vector<Fate> all(3, Fate::Offload);
  EXPECT_EQ(Timeline(small_step()).allowed(0, all)[1], Fate::Offload);
  EXPECT_EQ(Timeline(sketch).allowed(0, all)[1], Fate::Keep);
}

TEST(Timeline, WhatIsRecomputedTakesItsOperationsMemoryWhenItIsAskedFor) {
  const std::vector<Fate> fates{Fate::Keep, Fate::Recompute, Fate::Keep};
  EXPECT_EQ(live(small_step(), fates), (std::vector<std::uint64_t>{100, 110, 130, 137, 115}));
}

// a is overwritten after b was made of it. To recompute b the tape has a copy of a, beside what b takes.
TEST(Timeline, ACopyMadeBeforeAWriteIsThereWhileOthersAreRecomputed) {
  Sketch sketch = small_step();
  sketch.blocks[2].death = 3;
  Sketch::Call& call = sketch.calls[0];
  call.tape.operations[1].peak_bytes = 40;
  call.tape.operations.push_back({.name = "h_", .writes = {{1, 3}}});
  call.tape.values.push_back({.operation = 2, .bytes = 10});
  call.tape.saves = {2};
  call.tape.unpacks = {{2}};
  call.blocks.push_back(1);
  call.operators.push_back(1);
  call.begins.push_back(3);
  call.ends.push_back(3);
  EXPECT_EQ(live(sketch, {Fate::Keep, Fate::Keep, Fate::Recompute, Fate::Keep}),
            (std::vector<std::uint64_t>{100, 110, 130, 100 + 10 + 40, 100 + 10 + 20 + 5}));
}

TEST(Timeline, WhatAnOperatorTakesForGoodCountsFromTheBeginOfTheStep) {
  Sketch sketch = small_step();
  sketch.blocks[3] = {.bytes = 5, .birth = 4, .stays = true};
  EXPECT_EQ(Timeline(sketch).live({}), (std::vector<std::uint64_t>{100, 115, 135, 125, 105}));
}

TEST(Timeline, FatesThatAreNotFreeStayAsTheyAre) {
  Sketch sketch = small_step();
  sketch.calls[0].tape.operations[1].replayable = false;
  const Timeline timeline(sketch);
  EXPECT_EQ(timeline.allowed(0, {Fate::Recompute, Fate::Recompute, Fate::Recompute}),
            (std::vector<Fate>{Fate::Keep, Fate::Recompute, Fate::Keep}));
  EXPECT_EQ(timeline.allowed(0, {Fate::Offload, Fate::Offload, Fate::Offload}),
            (std::vector<Fate>{Fate::Keep, Fate::Offload, Fate::Keep}))
      << "others need the input and the output after the region";
}

// Two ways to the same number: bytes added up moment by moment, and one allocation after the other.
TEST(Timeline, ThePeakIsThatOfTheAllocations) {
  for (const char* name : kSketches) {
    const Sketch sketch = load_step(name);
    const Timeline timeline(sketch);
    std::mt19937 random(31);
    for (int i = 0; i < 100; ++i) {
      const auto fates = random_fates(timeline, random);
      std::vector<Profile> profiles;
      for (std::size_t call = 0; call < fates.size(); ++call)
        profiles.push_back(timeline.profile(call, fates[call]));
      std::vector<const Profile*> all;
      for (const Profile& profile : profiles) all.push_back(&profile);
      LiveLog log;
      replay_steps(timeline, fates, {.count = 2}, log);
      ASSERT_EQ(timeline.peak(all), log.ledger.peak_bytes()) << name << ", assignment " << i;
    }
  }
}

TEST(StepAllocations, AFurtherStepTakesItsOwnBlocksAndNothingElse) {
  const Sketch sketch = load_step("llama_on_gpu");
  const Timeline timeline(sketch);
  std::vector<std::vector<Fate>> kept;
  for (const Sketch::Call& call : sketch.calls) kept.emplace_back(call.tape.values.size(), Fate::Keep);
  const auto taken = [&](int steps) {
    LiveLog log;
    replay_steps(timeline, kept, {.count = steps}, log);
    return log.taken;
  };
  const auto one = taken(1), two = taken(2), three = taken(3);
  const auto is_of_step = [&](const Sketch::Block& block) {
    return block.birth >= sketch.begin && !block.stays;
  };
  const auto of_step = static_cast<std::size_t>(std::ranges::count_if(sketch.blocks, is_of_step));
  EXPECT_EQ(one.size(), sketch.blocks.size());
  EXPECT_EQ(two.size(), one.size() + of_step);
  EXPECT_EQ(three.size(), two.size() + of_step);
  const auto tail = [&](const auto& all) {
    return std::vector(all.end() - std::ptrdiff_t(of_step), all.end());
  };
  EXPECT_EQ(tail(two), tail(three)) << "the second step is like all that follow";
}

}  // namespace
}  // namespace snug::plan
