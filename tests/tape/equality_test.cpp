// Whatever the mixture of fates, a step has the bits of plain autograd; each alone: contract_test.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

constexpr int kAssignments = 70;  // for each of 5 models in 3 kinds of numbers: more than a thousand
constexpr int kFates = 3;

class Equality : public testing::TestWithParam<std::tuple<int, Numbers>> {
 protected:
  void SetUp() override {
    Problem model = problem();
    if (!runs_here(model)) GTEST_SKIP() << "oneDNN has no recurrent nets in 16 bits for this CPU";
  }

  static Problem problem() {
    return std::move(
        all_problems(std::get<1>(GetParam())).at(static_cast<std::size_t>(std::get<0>(GetParam()))));
  }
};

struct Counted {
  std::uint64_t replays = 0, offloaded = 0;
};
Counted count(const trace::Totals& totals) {
  Counted counted;
  for (const auto& [region, some] : totals) {
    counted.replays += some.replays;
    counted.offloaded += some.offloaded_values;
  }
  return counted;
}

TEST_P(Equality, PlainAutogradRepeatsItself) {
  Problem model = problem();
  EXPECT_TRUE(same_bits(step(model), step(model)));
}

TEST_P(Equality, RandomFates) {
  Problem model = problem();
  const auto plain = step(model), twice = step(model, 2);
  std::uint64_t asked[kFates] = {}, replays = 0, offloaded = 0;
  for (int seed = 0; seed < kAssignments; ++seed) {
    const Fates drawn = dice(static_cast<std::uint64_t>(seed));
    Recording recording(Fates([&](const ValueInfo& value) {
      const Fate fate = drawn(value);
      ++asked[static_cast<int>(fate)];
      return fate;
    }));
    ASSERT_TRUE(same_bits(plain, step(model))) << model.name << ", seed " << seed;
    replays += count(recording.totals()).replays;
    offloaded += count(recording.totals()).offloaded;
    if (seed % 10 == 0) {
      ASSERT_TRUE(same_bits(twice, step(model, 2))) << model.name << ", retained, seed " << seed;
    }
  }
  const std::uint64_t all = asked[0] + asked[1] + asked[2];
  for (const std::uint64_t some : asked) EXPECT_GE(some * 10, all * 3) << some << " of " << all;
  EXPECT_GT(replays, 2u * kAssignments);
  EXPECT_GT(offloaded, 2u * kAssignments);
  EXPECT_EQ(live_values(), 0);
}

std::string test_name(const testing::TestParamInfo<std::tuple<int, Numbers>>& info) {
  constexpr const char* kNames[] = {"Llama", "Gpt", "Convolutions", "Lstm", "SharedWeights"};
  std::string numbers = name(std::get<1>(info.param));
  numbers[0] = static_cast<char>(std::toupper(numbers[0]));
  return kNames[std::get<0>(info.param)] + numbers;
}

INSTANTIATE_TEST_SUITE_P(Models, Equality,
                         testing::Combine(testing::Range(0, 5),
                                          testing::Values(Numbers::Fp32, Numbers::Bf16, Numbers::Autocast)),
                         test_name);

// The suite above would notice if the tape did not do these two things.
TEST(EqualityControl, WithoutGeneratorsDropoutDiffers) {
  Problem model = gpt_with_dropout(Numbers::Fp32);
  const auto plain = step(model);
  Recording recording(Fates::recompute(), {.record_generators = false});
  EXPECT_FALSE(same_bits(plain, step(model)));
}

TEST(EqualityControl, WithoutTheRuleForStatisticsBatchNormDiffers) {
  Problem model = convolutions(Numbers::Fp32);
  const auto plain = step(model);
  Recording recording(Fates::recompute(), {.spare_statistics = false, .prove = false});
  bool differs = false;
  try {
    differs = !same_bits(plain, step(model));
  } catch (const c10::Error&) {
    differs = true;  // statistics that the replay needs have moved
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace snug::tape
