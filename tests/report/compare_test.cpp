// Two accounts side by side.
#include "snug/report/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "snug/base/bytes.h"

namespace snug::report {
namespace {

using trace::CategoryBytes;
using trace::Snapshot;

Snapshot account(CategoryBytes bytes) {
  Snapshot snapshot{.bytes = bytes};
  for (const std::uint64_t part : bytes) snapshot.total += part;
  return snapshot;
}

Snapshot::Region region(std::string name, std::uint64_t bytes) {
  return {std::move(name), CategoryBytes{0, 0, 0, 0, bytes, 0, 0}};
}

TEST(Compare, PutsPredictedBesideMeasured) {
  const Snapshot predicted = account({4_GiB, 2_GiB, 0, 0, 3_GiB, 1_GiB, 0});
  const Snapshot measured = account({4_GiB, 2_GiB, 0, 1_KiB, 3_GiB - 300_MiB, 1_GiB + 512_MiB, 0});
  EXPECT_EQ(compare(predicted, measured),
            "category     predicted   measured  difference\n"
            "parameters    4.00 GiB   4.00 GiB        same\n"
            "gradients     2.00 GiB   2.00 GiB        same\n"
            "optimizer      0 bytes    0 bytes        same\n"
            "inputs         0 bytes    1.0 KiB    +1.0 KiB\n"
            "activations   3.00 GiB   2.71 GiB  -300.0 MiB   -9.8 %\n"
            "temporaries   1.00 GiB   1.50 GiB  +512.0 MiB  +50.0 %\n"
            "other          0 bytes    0 bytes        same\n"
            "total        10.00 GiB  10.21 GiB  +212.0 MiB   +2.1 %\n");
}

TEST(Compare, TheComparisonHoldsTheExactFigures) {
  const Comparison figures = comparison(account({100, 0, 0, 0, 0, 0, 0}), account({100, 0, 0, 0, 25, 0, 0}));
  EXPECT_EQ(figures.predicted[0], 100u);
  EXPECT_EQ(figures.measured[4], 25u);
  EXPECT_EQ(figures.predicted_total, 100u);
  EXPECT_EQ(figures.measured_total, 125u);
  EXPECT_DOUBLE_EQ(figures.relative_difference(), 0.25);
}

TEST(Compare, NothingPredictedIsInfinitelyWrongUnlessNothingCame) {
  EXPECT_EQ(Comparison{}.relative_difference(), 0);
  EXPECT_TRUE(std::isinf(comparison({}, account({1, 0, 0, 0, 0, 0, 0})).relative_difference()));
  EXPECT_EQ(comparison(account({4, 0, 0, 0, 0, 0, 0}), {}).relative_difference(), -1);
}

TEST(Compare, ShowsWhatChangedBetweenTwoTraces) {
  Summary before{.events = 10, .steps = 1, .peak = account({0, 0, 0, 0, 5_GiB, 0, 0}), .seconds = 1};
  before.info.device = "cpu";
  before.peak.regions = {region("a", 3_GiB), region("b", 2_GiB)};
  before.operators = {{"mm", 10, 0}, {"add", 5, 0}, {"gone", 1, 0}};
  Summary after{
      .events = 20, .steps = 1, .peak = account({0, 0, 0, 0, 4_GiB, 0, 0}), .seconds = 2, .cut_short = true};
  after.info.device = "cpu";
  after.peak.regions = {region("a", 3_GiB), region("c", 512_MiB), region("", 512_MiB)};
  after.operators = {{"mm", 14, 0}, {"add", 5, 0}};
  EXPECT_EQ(compare(before, after),
            "before: cpu, 10 events, 1 step, 1.000 s\n"
            "after: cpu, 20 events, 1 step, 2.000 s, cut short\n"
            "\n"
            "At the peak\n"
            "category       before     after  difference\n"
            "parameters    0 bytes   0 bytes        same\n"
            "gradients     0 bytes   0 bytes        same\n"
            "optimizer     0 bytes   0 bytes        same\n"
            "inputs        0 bytes   0 bytes        same\n"
            "activations  5.00 GiB  4.00 GiB   -1.00 GiB  -20.0 %\n"
            "temporaries   0 bytes   0 bytes        same\n"
            "other         0 bytes   0 bytes        same\n"
            "total        5.00 GiB  4.00 GiB   -1.00 GiB  -20.0 %\n"
            "\n"
            "Regions at the peak, largest change first\n"
            "region       before      after  difference\n"
            "b          2.00 GiB    0 bytes   -2.00 GiB  -100.0 %\n"
            "(outside)   0 bytes  512.0 MiB  +512.0 MiB\n"
            "c           0 bytes  512.0 MiB  +512.0 MiB\n"
            "\n"
            "Operators that ran more or less often\n"
            "operator  before  after  difference\n"
            "mm            10     14          +4\n"
            "gone           1      0          -1\n");
}

TEST(Compare, SaysSoWhenNothingChanged) {
  const Summary same{.peak = account({1, 0, 0, 0, 0, 0, 0}), .operators = {{"mm", 1, 0}}};
  const std::string text = compare(same, same);
  EXPECT_NE(text.find("\nNo region changed at the peak.\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nEvery operator ran as often as before.\n"), std::string::npos) << text;
}

TEST(Compare, ShowsTheLargestChangesAndFits) {
  Summary before;
  Summary after;
  for (int i = 0; i < 30; ++i) {
    after.peak.regions.push_back(region(std::to_string(i) + std::string(200, 'r'), i * 1_MiB));
    after.operators.push_back({std::to_string(i) + std::string(200, 'o'), 1'000'000'000, 0});
  }
  before.info.device = after.info.device = std::string(200, 'd');
  const std::string text = compare(before, after);
  EXPECT_NE(text.find("and 19 more\n"), std::string::npos) << text;  // region 0 has no bytes
  EXPECT_NE(text.find("and 20 more\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n29rr"), std::string::npos);
  EXPECT_EQ(text.find("\n5rr"), std::string::npos);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

}  // namespace
}  // namespace snug::report
