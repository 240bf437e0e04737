#include "snug/plan/problem.h"

#include <gtest/gtest.h>

#include <limits>

#include "snug/base/error.h"
#include "tests/plan/random_problem.h"

namespace snug::plan {
namespace {

Outcome outcome(const Problem& problem) {
  return evaluate(problem, std::vector<std::uint32_t>(problem.regions.size()));
}

TEST(Evaluate, AddsWhatEarlierRegionsKeepToEachRegionsOwnPeak) {
  const auto first = share({{.kept_bytes = 10, .forward_bytes = 12, .backward_bytes = 15}});
  const auto second = share({{.kept_bytes = 5, .forward_bytes = 20, .backward_bytes = 9}});
  EXPECT_EQ(outcome({.regions = {first, second}}).peak_bytes, 30);
  EXPECT_EQ(outcome({.regions = {second, first}}).peak_bytes, 20);
  EXPECT_EQ(outcome({.regions = {second, first}, .floor_bytes = 21}).peak_bytes, 21);
  EXPECT_EQ(outcome({.regions = {share({{.kept_bytes = 10}})}}).peak_bytes, 10);  // at the turn
}

TEST(Evaluate, CountsPassesAndTheFixedTime) {
  const auto region = share({{.forward_seconds = 1, .backward_seconds = 2}});
  EXPECT_EQ(outcome({.regions = {region, region}, .fixed_seconds = 0.5, .passes = 4}).seconds, 24.5);
}

TEST(Evaluate, HoldsWhatTheRegionBeforeOffloadsAndNothingOfEarlierOnes) {
  const auto first = share({{.kept_bytes = 1, .offloaded_bytes = 100}});
  const auto second = share({{.forward_bytes = 3, .backward_bytes = 2}});
  const auto third = share({{.forward_bytes = 7}});
  const Problem problem{.regions = {first, second, third}, .to_host_rate = 20, .to_device_rate = 20};
  EXPECT_EQ(outcome(problem).peak_bytes, 1 + 100 + 3);
  Problem last = problem;
  last.regions = {third, first};
  EXPECT_EQ(outcome(last).peak_bytes, 1 + 100) << "nobody lets it leave";
}

TEST(Evaluate, TakesAsLongAsTheLinkWhereThatIsLonger) {
  const auto first = share({{.offloaded_bytes = 100, .forward_seconds = 1, .backward_seconds = 1}});
  const auto second = share({{.forward_seconds = 2, .backward_seconds = 10}});
  Problem problem{.regions = {first, second}, .to_host_rate = 20, .to_device_rate = 50};
  EXPECT_EQ(outcome(problem).seconds, (1 + 5) + (10 + 1));
  problem.copy_slowdown = 0.25;  // beside a copy of two seconds
  EXPECT_EQ(outcome(problem).seconds, (1 + 5) + (10 + 0.5 + 1));
}

TEST(Evaluate, RefusesWhatIsNotAnAssignment) {
  const auto region = share({{}, {}});
  EXPECT_THROW(evaluate({.regions = {region}}, {}), Error);
  EXPECT_THROW(evaluate({.regions = {region}}, std::vector<std::uint32_t>{2}), Error);
  EXPECT_THROW(outcome({.regions = {share({{.forward_seconds = -1}})}}), Error);
  EXPECT_THROW(
      outcome({.regions = {share({{.backward_seconds = std::numeric_limits<double>::quiet_NaN()}})}}), Error);
}

TEST(Evaluate, RefusesToOffloadWithoutALink) {
  const Problem problem{.regions = {share({{.offloaded_bytes = 1}, {}})}, .to_host_rate = 1};
  EXPECT_THROW(outcome(problem), Error);
  EXPECT_NO_THROW(evaluate(problem, std::vector<std::uint32_t>{1}));
}

}  // namespace
}  // namespace snug::plan
