#include "snug/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "snug/base/error.h"
#include "snug/plan/bound.h"
#include "tests/plan/random_problem.h"

namespace snug::plan {
namespace {

// For each peak, the fastest assignment that has exactly this peak.
using Fastest = std::map<std::uint64_t, double>;

Fastest brute_force(const Problem& problem) {
  Fastest fastest;
  for_each_assignment(problem, [&](const auto&, const Outcome& outcome) {
    const auto [at, fresh] = fastest.try_emplace(outcome.peak_bytes, outcome.seconds);
    if (!fresh) at->second = std::min(at->second, outcome.seconds);
  });
  return fastest;
}

Fastest worth_having(const Fastest& all) {
  Fastest frontier;
  double seconds = std::numeric_limits<double>::infinity();
  for (const auto& [peak, time] : all)
    if (time < seconds) frontier.emplace(peak, seconds = time);
  return frontier;
}

void expect_real_plans(const Problem& problem, const Frontier& frontier) {
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    const Outcome outcome = evaluate(problem, frontier[i].chosen);
    EXPECT_EQ(outcome.peak_bytes, frontier[i].peak_bytes);
    EXPECT_EQ(outcome.seconds, frontier[i].seconds);
    if (i == 0) continue;
    EXPECT_LT(frontier[i - 1].peak_bytes, frontier[i].peak_bytes);
    EXPECT_GT(frontier[i - 1].seconds, frontier[i].seconds);
  }
}

std::set<std::uint64_t> budgets_for(const Fastest& all) {
  std::set<std::uint64_t> budgets{0, all.rbegin()->first + 1, 2 * all.rbegin()->first};
  for (const auto& [peak, seconds] : worth_having(all)) {
    budgets.insert(peak);
    if (peak > 0) budgets.insert(peak - 1);
  }
  for (std::uint64_t i = 1; i < 8; ++i) budgets.insert(all.rbegin()->first * i / 8);
  return budgets;
}

void expect_optimal(const Problem& problem) {
  const Fastest all = brute_force(problem), frontier = worth_having(all);
  const Frontier found = search(problem);
  expect_real_plans(problem, found);
  for (const std::uint64_t budget : budgets_for(all)) {
    const auto above = frontier.upper_bound(budget);
    const Point* point = best(found, budget);
    ASSERT_EQ(point != nullptr, above != frontier.begin()) << "budget " << budget;
    if (!point) continue;
    const auto& [peak, seconds] = *std::prev(above);
    EXPECT_EQ(point->peak_bytes, peak) << "budget " << budget;
    EXPECT_NEAR(point->seconds, seconds, 1e-12 * seconds) << "budget " << budget;
    EXPECT_LE(lower_bound(problem, budget), seconds) << "budget " << budget;
  }
}

TEST(Search, FindsWhatBruteForceFinds) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    expect_optimal(RandomProblem(seed).draw(seed % 50 == 49 ? RandomProblem::kAll : 20000));
    if (HasFailure()) return;
  }
}

TEST(Search, FindsTheBestMixOfIdenticalRegions) {
  const auto region =
      share({{10, 0, 14, 16, 1, 2}, {6, 4, 14, 16, 1, 2}, {2, 0, 12, 18, 1, 3}, {1, 1, 12, 18, 1, 3.25}});
  Problem problem{.regions = {6, region}, .floor_bytes = 20, .to_host_rate = 3, .to_device_rate = 2};
  expect_optimal(problem);
  problem.regions.push_back(share({{0, 0, 25, 40, 1, 1}, {0, 0, 10, 20, 2, 2}}));
  expect_optimal(problem);
}

// Fewer and fewer labels: the plans get worse, but stay real, and more memory never makes them slower.
TEST(Search, StaysMonotoneWhenItThins) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem = RandomProblem(seed).draw(RandomProblem::kAll);
    const Frontier exact = search(problem);
    for (const std::size_t most : {2, 5, 20}) {
      const Frontier thinned = search(problem, {.most_labels = most});
      ASSERT_FALSE(thinned.empty());
      expect_real_plans(problem, thinned);
      for (const Point& point : thinned) {
        const Point* optimum = best(exact, point.peak_bytes);
        ASSERT_NE(optimum, nullptr);
        EXPECT_LE(optimum->seconds, point.seconds);
      }
    }
  }
}

TEST(Search, KeepsTheLowestPeakAndTheFastestPlanWhenItThins) {
  std::mt19937_64 random(7);
  Problem problem;
  for (int i = 0; i < 12; ++i) {
    Choices choices(8);
    for (Choice& choice : choices)
      choice = {random() % 1000,
                0,
                random() % 2000,
                random() % 3000,
                1e-3 * static_cast<double>(random() % 1000),
                0};
    problem.regions.push_back(share(std::move(choices)));
  }
  const Frontier exact = search(problem, {.most_labels = 1'000'000}),
                 thinned = search(problem, {.most_labels = 10});
  EXPECT_GT(exact.size(), thinned.size());
  EXPECT_EQ(exact.front().peak_bytes, thinned.front().peak_bytes);
  EXPECT_EQ(exact.back().seconds, thinned.back().seconds);
}

TEST(Search, OfNoRegionsIsOnePlan) {
  const Frontier frontier = search({.floor_bytes = 7, .fixed_seconds = 2});
  ASSERT_EQ(frontier.size(), 1);
  EXPECT_EQ(frontier[0].peak_bytes, 7);
  EXPECT_EQ(frontier[0].seconds, 2);
  EXPECT_TRUE(frontier[0].chosen.empty());
  EXPECT_EQ(best(frontier, 6), nullptr);
  EXPECT_EQ(best(frontier, 7), &frontier[0]);
}

TEST(Search, OfOneRegionIsItsUsefulChoices) {
  const Frontier frontier =
      search({.regions = {share({{8, 0, 9, 10, 1, 1}, {9, 0, 9, 11, 1, 1}, {1, 0, 5, 6, 1, 2}})}});
  ASSERT_EQ(frontier.size(), 2);
  EXPECT_EQ(frontier[0].chosen, std::vector<std::uint32_t>{2});
  EXPECT_EQ(frontier[1].chosen, std::vector<std::uint32_t>{0});
}

// What one region offloads, the next one hides: more than that is slower than keeping it elsewhere.
TEST(Search, OffloadsWhatTheNextRegionHides) {
  const auto region = share({{8, 0, 8, 8, 2, 4}, {4, 4, 8, 8, 2, 4}, {0, 8, 8, 8, 2, 4}});
  const Problem problem{.regions = {4, region}, .to_host_rate = 2, .to_device_rate = 2};
  expect_optimal(problem);
  const Frontier frontier = search(problem);
  EXPECT_EQ(frontier.back().seconds, 24) << "as fast as without";
  EXPECT_LT(frontier.back().peak_bytes, 32u) << "four bytes of each region are away";
}

TEST(Search, RefusesWhatCannotBePlanned) {
  const auto offloads = share({{0, 10, 10, 10, 1, 1}});
  EXPECT_THROW(search({.regions = {offloads}}), Error);
  EXPECT_THROW(search({.regions = {offloads}, .to_host_rate = 1}), Error);
  EXPECT_THROW(search({.regions = {offloads}, .to_device_rate = 1}), Error);
  EXPECT_NO_THROW(search({.regions = {offloads}, .to_host_rate = 1, .to_device_rate = 1}));
  EXPECT_THROW(search({.regions = {share({})}}), Error);
  EXPECT_THROW(search({.regions = {nullptr}}), Error);
  EXPECT_THROW(search({}, {.most_labels = 1}), Error);
}

}  // namespace
}  // namespace snug::plan
