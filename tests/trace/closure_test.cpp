#include "snug/trace/closure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/trace/random_tape.h"

namespace snug::trace {
namespace {

using Indices = std::vector<std::uint32_t>;

// x -> a -> b -> c, all saved; the backward asks in reverse.
RegionTape chain() {
  RegionTape tape;
  tape.values = {{.bytes = 1000}};
  for (std::uint32_t i = 0; i < 3; ++i) {
    tape.operations.push_back({.name = "op", .reads = {i}, .results = {i + 1}});
    tape.values.push_back({.operation = i, .bytes = 10u + i});
    tape.saves.push_back(i + 1);
    tape.unpacks.insert(tape.unpacks.begin(), {i + 1});
  }
  return tape;
}

TEST(Closure, NothingRunsWhenAllIsKept) {
  const Closure kept = closure(chain(), std::vector(4, Fate::Keep));
  EXPECT_TRUE(kept.operations.empty());
  EXPECT_EQ(kept.peak_bytes, 0u);
  EXPECT_EQ(kept.kept_bytes, 10u + 11 + 12);
}

TEST(Closure, AChainRunsOnceAndIsFreedFromItsEnd) {
  const Closure all = closure(chain(), std::vector(4, Fate::Recompute));
  EXPECT_EQ(all.operations, (Indices{0, 1, 2}));
  EXPECT_EQ(all.peak_bytes, 10u + 11 + 12);
  EXPECT_EQ(all.kept_bytes, 1000u) << "the input alone";
}

TEST(Closure, ASliceStopsAtAKeptValue) {
  const Closure some =
      closure(chain(), std::vector{Fate::Keep, Fate::Recompute, Fate::Keep, Fate::Recompute});
  EXPECT_EQ(some.operations, (Indices{2, 0}));
  EXPECT_EQ(some.peak_bytes, 12u);
  EXPECT_EQ(some.kept_bytes, 1000u + 11);
}

TEST(Closure, AnOperationThatCannotRunAgainKeepsItsResult) {
  RegionTape tape = chain();
  tape.operations[1].replayable = false;
  const Closure some = closure(tape, std::vector(4, Fate::Recompute));
  EXPECT_EQ(some.operations, (Indices{2, 0}));
  EXPECT_EQ(some.kept_bytes, 1000u + 11);
}

TEST(Closure, AWriteTakesOverWhatNobodyElseNeeds) {
  RegionTape tape;
  tape.values = {{.bytes = 7}, {.operation = 0, .bytes = 100}, {.operation = 1, .bytes = 100}};
  tape.operations = {{.name = "make", .reads = {0}, .results = {1}}, {.name = "relu_", .writes = {{1, 2}}}};
  tape.saves = {2};
  tape.unpacks = {{2}};
  EXPECT_EQ(closure(tape, std::vector(3, Fate::Recompute)).peak_bytes, 100u);
  const std::vector<Fate> kept_before = {Fate::Keep, Fate::Keep, Fate::Recompute};
  EXPECT_EQ(closure(tape, kept_before).peak_bytes, 0u)
      << "what is kept is not written again, so the result is kept";
  EXPECT_EQ(closure(tape, kept_before).kept_bytes, 100u);
  tape.saves = {1, 2};
  tape.unpacks = {{2}, {1}};
  EXPECT_EQ(closure(tape, std::vector(3, Fate::Recompute)).peak_bytes, 200u)
      << "a copy of what is still needed";
}

TEST(Closure, AWriteMayGrowWhatItIsGiven) {
  RegionTape tape;
  tape.values = {{.operation = 0, .bytes = 0}, {.operation = 1, .bytes = 100}, {.operation = 2, .bytes = 10}};
  tape.operations = {{.name = "empty", .results = {0}},
                     {.name = "mul.out", .writes = {{0, 1}}},
                     {.name = "op", .results = {2}}};
  tape.saves = {1, 2};
  tape.unpacks = {{1}, {2}};
  EXPECT_EQ(closure(tape, std::vector(3, Fate::Recompute)).peak_bytes, 100u);
}

TEST(Closure, WhatIsAskedForAfterItsLastUseIsMadeAgain) {
  RegionTape tape = chain();
  tape.unpacks.insert(tape.unpacks.end(), {{3}, {2}, {1}});
  EXPECT_EQ(closure(tape, std::vector(4, Fate::Recompute)).operations.size(), 3u + 3 + 2 + 1);
}

TEST(Closure, ANodeHoldsWhatItAskedForUntilItEnds) {
  RegionTape tape = chain();
  tape.unpacks = {{3, 2}, {1}};
  const Closure all = closure(tape, std::vector{Fate::Keep, Fate::Keep, Fate::Recompute, Fate::Recompute});
  EXPECT_EQ(all.peak_bytes, 11u + 12);
}

TEST(Closure, ManyOperationsInOneSlice) {
  RegionTape tape;
  tape.values.push_back({.bytes = 4});
  for (std::uint32_t i = 0; i < 100000; ++i) {
    tape.operations.push_back({.name = "op", .reads = {i}, .results = {i + 1}});
    tape.values.push_back({.operation = i, .bytes = 4});
  }
  tape.saves = {100000};
  tape.unpacks = {{100000}};
  const Closure all = closure(tape, std::vector(tape.values.size(), Fate::Recompute));
  EXPECT_EQ(all.operations.size(), 100000u);
  EXPECT_EQ(all.peak_bytes, 8u);
}

TEST(RegionTape, TheHashIsOfStructureNotOfSizes) {
  RegionTape tape = chain(), larger = chain(), other = chain(), renamed = chain();
  for (auto& value : larger.values) value.bytes *= 3;
  other.operations[2].reads = {1};
  renamed.operations[0].name = "another";
  EXPECT_EQ(tape.structure_hash(), larger.structure_hash());
  EXPECT_NE(tape.structure_hash(), other.structure_hash());
  EXPECT_NE(tape.structure_hash(), renamed.structure_hash());
}

// Random tapes against a second, slower way of saying the same: lifetimes as intervals on a line of time.
class BruteForce {
 public:
  explicit BruteForce(const RandomTape& random) : tape_(random.tape), fates_(random.fates) {}

  bool is_recomputed(ValueIndex value) const {
    const auto operation = tape_.values[value].operation;
    if (operation == TapeValue::kOutside || fates_[value] != Fate::Recompute) return false;
    for (const auto& write : tape_.operations[operation].writes)
      if (!is_recomputed(write.before)) return false;
    return tape_.operations[operation].replayable;
  }
  std::vector<ValueIndex> reads(std::uint32_t operation) const {
    std::vector<ValueIndex> all = tape_.operations[operation].reads;
    for (const auto& write : tape_.operations[operation].writes) all.push_back(write.before);
    return all;
  }
  void add_needed(ValueIndex value, std::set<std::uint32_t>& needed) const {
    if (!is_recomputed(value) || !needed.insert(tape_.values[value].operation).second) return;
    for (const ValueIndex read : reads(tape_.values[value].operation)) add_needed(read, needed);
  }

  void check(const Closure& result) const {
    // Each request runs what it needs and has not run yet, in an order in which arguments come first.
    std::set<std::uint32_t> done;
    std::size_t at = 0;
    std::vector<std::size_t> run_time(tape_.operations.size(), 0);
    std::vector<std::vector<std::size_t>> uses(tape_.values.size());
    std::vector<std::vector<std::size_t>> held_until(tape_.values.size());  // pairs: from, to
    std::size_t now = 0;
    std::vector<std::pair<std::size_t, std::uint32_t>> runs;
    for (const auto& node : tape_.unpacks) {
      std::vector<std::pair<ValueIndex, std::size_t>> asked;
      for (const ValueIndex wanted : node) {
        std::set<std::uint32_t> needed;
        add_needed(wanted, needed);
        std::erase_if(needed, [&](std::uint32_t operation) { return done.contains(operation); });
        const std::size_t count = needed.size();
        ASSERT_LE(at + count, result.operations.size());
        for (std::size_t i = 0; i < count; ++i) {
          const std::uint32_t operation = result.operations[at++];
          ASSERT_TRUE(needed.contains(operation)) << "an operation ran that this request does not need";
          for (const ValueIndex read : reads(operation)) {
            if (is_recomputed(read)) {
              ASSERT_TRUE(done.contains(tape_.values[read].operation)) << "before its argument";
            }
          }
          ASSERT_TRUE(done.insert(operation).second) << "twice";
          run_time[operation] = ++now;
          runs.emplace_back(now, operation);
          for (const ValueIndex read : reads(operation)) uses[read].push_back(now);
        }
        uses[wanted].push_back(++now);
        asked.emplace_back(wanted, now);
      }
      ++now;  // the node ends
      for (const auto& [value, since] : asked)
        held_until[value].insert(held_until[value].end(), {since, now});
    }
    ASSERT_EQ(at, result.operations.size());

    std::uint64_t peak = 0;
    for (const auto& [time, operation] : runs) {
      std::uint64_t live = 0;
      for (ValueIndex value = 0; value < tape_.values.size(); ++value) {
        if (!is_recomputed(value) || !done.contains(tape_.values[value].operation)) continue;
        if (run_time[tape_.values[value].operation] >= time) continue;
        bool alive = std::ranges::any_of(uses[value], [&](std::size_t use) { return use >= time; });
        alive |= is_held(held_until[value], time);
        if (alive) live += tape_.values[value].bytes;
      }
      for (const ValueIndex made : tape_.operations[operation].results) live += tape_.values[made].bytes;
      for (const auto& write : tape_.operations[operation].writes) {
        const auto later =
            std::ranges::count_if(uses[write.before], [&](std::size_t use) { return use >= time; });
        const bool takes_over =
            is_recomputed(write.before) && later == 1 && !is_held(held_until[write.before], time);
        if (!takes_over) live += tape_.values[write.before].bytes;
      }
      peak = std::max(peak, live);
    }
    EXPECT_EQ(peak, result.peak_bytes);
  }

 private:
  static bool is_held(const std::vector<std::size_t>& pairs, std::size_t time) {
    for (std::size_t i = 0; i < pairs.size(); i += 2)
      if (pairs[i] < time && time < pairs[i + 1]) return true;
    return false;
  }
  const RegionTape& tape_;
  const std::vector<Fate>& fates_;
};

TEST(Closure, AgreesWithBruteForceOnRandomTapes) {
  std::size_t replays = 0;
  for (unsigned seed = 0; seed < 5000; ++seed) {
    const RandomTape random(seed);
    const Closure result = closure(random.tape, random.fates);
    SCOPED_TRACE(seed);
    BruteForce(random).check(result);
    if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;
    replays += result.operations.size();
  }
  EXPECT_GT(replays, 5000u);
}

}  // namespace
}  // namespace snug::trace
