// The choices of random small regions against every choice there is.
#include "snug/plan/region_choices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "snug/trace/closure.h"
#include "tests/trace/random_tape.h"

namespace snug::plan {
namespace {

using trace::RegionTape;
using trace::TapeValue;

// One call whose blocks die with the forward, but for some that somebody else holds.
struct RandomRegion {
  explicit RandomRegion(unsigned seed) : random(seed) {
    RegionTape tape = trace::RandomTape(seed, 9).tape;
    for (TapeValue& value : tape.values)
      value.parameter = value.operation == TapeValue::kOutside && random() % 3 == 0;
    Sketch::Call call{.tape = std::move(tape), .forward_end = 10, .backward_begin = 20, .backward_end = 30};
    for (const TapeValue& value : call.tape.values) {
      const bool outlives_it = random() % 5 == 0;
      call.blocks.push_back(static_cast<std::uint32_t>(sketch.blocks.size()));
      sketch.blocks.push_back({.bytes = value.bytes, .birth = 1, .death = outlives_it ? 15u : 5u});
    }
    for (std::size_t i = 0; i < call.tape.operations.size(); ++i)
      seconds.push_back(std::uniform_real_distribution(0.5, 50.0)(random));
    sketch.moments = 40;
    sketch.calls.push_back(std::move(call));
  }

  double cost(std::span<const Fate> fates, double price) const {
    const RegionTape& tape = sketch.calls[0].tape;
    const trace::ClosureBytes walk(tape, fates);
    const std::vector<bool> kept = trace::kept_values(tape, walk);
    double bytes = 0, time = 0;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i] && sketch.blocks[i].death <= sketch.calls[0].forward_end)
        bytes += static_cast<double>(tape.values[i].bytes);
    for (const std::uint32_t operation : trace::closure(tape, fates).operations) time += seconds[operation];
    return time + price * bytes;
  }

  std::mt19937 random;
  Sketch sketch;
  std::vector<double> seconds;
};

TEST(RegionChoices, HaveTheBestForEveryPriceOfMemory) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomRegion region(seed);
    const Timeline timeline(region.sketch);
    const RegionTape& tape = region.sketch.calls[0].tape;
    const auto choices = region_choices(timeline, 0, region.seconds);
    EXPECT_TRUE(trace::closure(tape, choices.front()).operations.empty()) << "the first keeps all";
    std::vector<std::vector<Fate>> all;
    for (unsigned mask = 0; mask < 1u << tape.operations.size(); ++mask) {
      std::vector<Fate> fates;
      for (const TapeValue& value : tape.values)
        fates.push_back(value.operation != TapeValue::kOutside && mask & 1u << value.operation
                            ? Fate::Recompute
                            : Fate::Keep);
      all.push_back(timeline.allowed(0, std::move(fates)));
    }
    for (int i = 0; i < 20; ++i) {
      const double price = std::exp(std::uniform_real_distribution(-9.0, 13.0)(region.random));
      const auto least = [&](const auto& some) {
        double cost = std::numeric_limits<double>::infinity();
        for (const auto& fates : some) cost = std::min(cost, region.cost(fates, price));
        return cost;
      };
      const double best = least(all);
      EXPECT_NEAR(least(choices), best, 1e-6 * best) << "seed " << seed << ", price " << price;
    }
  }
}

}  // namespace
}  // namespace snug::plan
