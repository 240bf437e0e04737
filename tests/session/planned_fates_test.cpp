#include "snug/session/planned_fates.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "snug/plan/plan.h"

namespace snug::session {
namespace {

using tape::Fate;

constexpr std::uint64_t kBytes = 100;

plan::Plan plan_of(plan::RegionPlan region) {
  plan::Plan plan;
  plan.regions.push_back(std::move(region));
  return plan;
}

// Answers as a tape would ask: operation, output.
class Asked {
 public:
  explicit Asked(plan::RegionPlan region)
      : fates_(planned_fates(plan_of(std::move(region)),
                             [this](Difference, const std::string& text) { said.push_back(text); })) {}
  Fate operator()(std::uint32_t operation, std::uint32_t output, const char* name = "op") {
    return fates_({.region = "r",
                   .outermost = "r",
                   .operation = name,
                   .ordinal = operation,
                   .output = output,
                   .bytes = kBytes,
                   .pass = pass});
  }
  int pass = 0;
  std::vector<std::string> said;

 private:
  tape::Fates fates_;
};

TEST(PlannedFates, FromTheByteOnThatIsTooManyAllIsRecomputed) {
  Asked asked({.region = "r", .bytes = 2 * kBytes, .offload = {{3, 0, "op"}}});
  EXPECT_EQ(asked(0, 0), Fate::Keep);
  EXPECT_EQ(asked(1, 0), Fate::Keep);
  EXPECT_EQ(asked(2, 0), Fate::Recompute);
  EXPECT_EQ(asked(3, 0), Fate::Recompute);
  EXPECT_EQ(asked.said.size(), 1u) << "once per call";
  EXPECT_EQ(asked(0, 0), Fate::Keep);
  for (const std::uint32_t more : {1, 2, 3}) asked(more, 0);
  EXPECT_EQ(asked.said.size(), 2u);
}

// Operations that the plan does not name may be those that it keeps: the bytes bound them.
TEST(PlannedFates, OperationsBeyondThePlansAreKeptUpToItsBytes) {
  Asked asked({.region = "r", .bytes = 3 * kBytes, .recompute = {{0, 0, "op"}}});
  EXPECT_EQ(asked(0, 0), Fate::Recompute);
  int kept = 0;
  for (std::uint32_t operation = 1; operation < 10; ++operation) kept += asked(operation, 0) == Fate::Keep;
  EXPECT_EQ(kept, 2);
}

TEST(PlannedFates, AnotherOperationThanNamedMakesTheCallRecomputed) {
  Asked asked({.region = "r", .bytes = 9 * kBytes, .recompute = {{1, 0, "op"}}});
  EXPECT_EQ(asked(0, 0), Fate::Keep);
  EXPECT_EQ(asked(1, 0, "another"), Fate::Recompute);
  EXPECT_EQ(asked(2, 0), Fate::Recompute);
  EXPECT_EQ(asked(0, 0), Fate::Keep) << "another call";
}

TEST(PlannedFates, TensorsOfAListThatIsWrittenAreOfOneCall) {
  Asked asked({.region = "r", .bytes = 3 * kBytes});
  EXPECT_EQ(asked(0, 0), Fate::Keep);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(asked(1, 1000), Fate::Keep);
  EXPECT_EQ(asked(1, 1000), Fate::Recompute) << "the fourth value of the call";
}

TEST(PlannedFates, ARegionOfOneOperationIsAnotherCallEachTime) {
  Asked asked({.region = "r", .bytes = kBytes});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(asked(0, 0), Fate::Keep);
  EXPECT_TRUE(asked.said.empty());
}

TEST(PlannedFates, ACallThatBeginsWithMoreThanPlannedKeepsNothing) {
  Asked asked({.region = "r", .bytes = 9 * kBytes, .first_bytes = kBytes - 1});
  for (const std::uint32_t operation : {0, 1, 2}) EXPECT_EQ(asked(operation, 0), Fate::Recompute);
  EXPECT_EQ(asked.said.size(), 1u);
}

TEST(PlannedFates, AnOperationThatThePlanHasNotIsSaidAndRecomputedFromThereOn) {
  Asked asked({.region = "r", .bytes = 9 * kBytes, .operations = {"op", "op"}});
  EXPECT_EQ(asked(0, 0), Fate::Keep);
  EXPECT_EQ(asked(1, 0, "another"), Fate::Recompute);
  ASSERT_EQ(asked.said.size(), 1u);
  EXPECT_NE(asked.said[0].find("another where the plan has op"), std::string::npos) << asked.said[0];
  EXPECT_EQ(asked(0, 0), Fate::Keep) << "another call";
  EXPECT_EQ(asked(1, 0), Fate::Keep);
  EXPECT_EQ(asked(2, 0), Fate::Recompute) << "one more";
  EXPECT_EQ(asked.said.size(), 2u);
}

TEST(PlannedFates, ASecondPassOfAStepThatWasPlannedAsOneKeepsNothing) {
  Asked asked({.region = "r", .bytes = 2 * kBytes});
  for (int step = 0; step < 2; ++step) {
    asked.pass = 0;
    for (const std::uint32_t operation : {0, 1}) EXPECT_EQ(asked(operation, 0), Fate::Keep);
    asked.pass = 1;
    for (const std::uint32_t operation : {0, 1}) EXPECT_EQ(asked(operation, 0), Fate::Recompute);
  }
  EXPECT_EQ(asked.said.size(), 2u);
}

TEST(PlannedFates, ARegionThatThePlanDoesNotHaveIsRecomputed) {
  Asked asked({.region = "another", .bytes = 9 * kBytes});
  EXPECT_EQ(asked(0, 0), Fate::Recompute);
}

}  // namespace
}  // namespace snug::session
