#include "snug/optim/schedule.h"

#include <gtest/gtest.h>

#include <limits>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug::optim {
namespace {

using testing::message_of;
using Kind = Schedule::Kind;

TEST(Schedule, ConstantStaysAfterWarmUp) {
  const Schedule schedule{.kind = Kind::Constant, .lr = 2e-3, .warmup = 4};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.5e-3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 2e-3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1000000), 2e-3);
}

TEST(Schedule, WithoutWarmUpTheFirstStepHasTheWholeRate) {
  for (Kind kind : {Kind::Constant, Kind::Cosine, Kind::Linear}) {
    EXPECT_DOUBLE_EQ(learning_rate({.kind = kind, .lr = 0.1, .total = 10}, 0), 0.1);
  }
}

TEST(Schedule, CosineFallsFromWarmUpToTheFloor) {
  const Schedule schedule{.kind = Kind::Cosine, .lr = 1.0, .warmup = 10, .total = 110, .min_ratio = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 5), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 60), 0.55);
  EXPECT_NEAR(learning_rate(schedule, 35), 0.1 + 0.9 * 0.8535533905932737, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 110), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 500), 0.1);
}

TEST(Schedule, LinearFallsFromWarmUpToTheFloor) {
  const Schedule schedule{.kind = Kind::Linear, .lr = 2.0, .warmup = 2, .total = 12};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 7), 1.0);
  EXPECT_NEAR(learning_rate(schedule, 11), 0.2, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 12), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 13), 0.0);
}

TEST(Schedule, NamesGoBothWays) {
  for (Kind kind : {Kind::Constant, Kind::Cosine, Kind::Linear})
    EXPECT_EQ(parse_schedule(to_string(kind)), kind);
  EXPECT_EQ(parse_schedule("cosine"), Kind::Cosine);
  EXPECT_EQ(message_of<Error>([] { parse_schedule("Cosine"); }),
            "unknown schedule 'Cosine': expected constant, cosine or linear");
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  const auto refusal = [](const Schedule& schedule, std::int64_t step = 0) {
    return message_of<Error>([&] { learning_rate(schedule, step); });
  };
  EXPECT_EQ(refusal({.lr = -1}), "the learning rate must be at least 0, got -1");
  EXPECT_EQ(refusal({.lr = std::numeric_limits<double>::quiet_NaN()}),
            "the learning rate must be at least 0, got nan");
  EXPECT_EQ(refusal({.lr = 1, .warmup = -2}), "warm-up must be at least 0 steps, got -2");
  EXPECT_EQ(refusal({.lr = 1, .min_ratio = 1.5}),
            "the final learning rate must be 0 to 1 of the first, got 1.5");
  EXPECT_EQ(refusal({.kind = Kind::Cosine, .lr = 1, .warmup = 5, .total = 5}),
            "a cosine schedule needs more steps than its warm-up of 5, got 5");
  EXPECT_EQ(refusal({.lr = 1}, -1), "steps count from 0, got -1");
}

}  // namespace
}  // namespace snug::optim
