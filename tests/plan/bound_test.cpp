#include "snug/plan/bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/plan/random_problem.h"

namespace snug::plan {
namespace {

TEST(Bound, IsTheFastestTimeWhereMemoryIsPlentiful) {
  const auto region = share({{.kept_bytes = 10, .forward_seconds = 1, .backward_seconds = 2},
                             {.kept_bytes = 2, .forward_seconds = 1, .backward_seconds = 4}});
  const Problem problem{.regions = {region, region}, .fixed_seconds = 1, .passes = 2};
  EXPECT_NEAR(lower_bound(problem, 20), 13, 1e-9);
  EXPECT_LE(lower_bound(problem, 20), 13);
}

TEST(Bound, MixesChoicesInAnyProportion) {
  const auto region =
      share({{.kept_bytes = 10, .backward_seconds = 2}, {.kept_bytes = 2, .backward_seconds = 4}});
  const Problem problem{.regions = {region, region}};
  EXPECT_NEAR(lower_bound(problem, 16), 5, 1e-9);  // half of one region's 2 seconds more
}

// The first cannot mix its choices: either leaves the second its room, or does not.
TEST(Bound, CountsWhatALaterRegionNeedsForItself) {
  const auto first =
      share({{.kept_bytes = 10, .backward_seconds = 2}, {.kept_bytes = 0, .backward_seconds = 4}});
  const auto second = share({{.backward_bytes = 15, .backward_seconds = 1}});
  const Problem problem{.regions = {first, second}};
  EXPECT_NEAR(lower_bound(problem, 25), 3, 1e-9);
  EXPECT_NEAR(lower_bound(problem, 20), 5, 1e-9);
}

TEST(Bound, LeavesOutChoicesThatCannotFitAlone) {
  const Problem problem{.regions = {share({{.forward_bytes = 100, .forward_seconds = 1},
                                           {.forward_bytes = 10, .forward_seconds = 5}})}};
  EXPECT_NEAR(lower_bound(problem, 100), 1, 1e-9);
  EXPECT_NEAR(lower_bound(problem, 99), 5, 1e-9);
}

TEST(Bound, IsInfiniteWhereNothingFits) {
  const auto region = share({{.kept_bytes = 10, .backward_bytes = 12}});
  const Problem problem{.regions = {region, region}, .floor_bytes = 30};
  EXPECT_TRUE(std::isinf(lower_bound(problem, 29)));
  EXPECT_TRUE(std::isinf(lower_bound({.regions = {region, region}}, 21)));
  EXPECT_TRUE(std::isinf(lower_bound({.regions = {region, region}}, 11)));
  EXPECT_EQ(lower_bound({.regions = {region, region}}, 22), 0);
}

TEST(Bound, OfAnEmptyProblemIsItsFixedTime) {
  EXPECT_NEAR(lower_bound({.fixed_seconds = 3}, 0), 3, 1e-9);
}

}  // namespace
}  // namespace snug::plan
