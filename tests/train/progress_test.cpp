#include "snug/train/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "snug/base/bytes.h"

namespace snug::train {
namespace {

const StepMetrics kMetrics{.step = 12,
                           .loss = 3.2141,
                           .gradient_norm = 1.018,
                           .seconds = 0.21,
                           .tokens_per_second = 1234.4,
                           .peak_bytes = 294_MiB};

struct Free {
  void operator()(char* text) const { std::free(text); }
};

// What a progress of three steps writes where there is no terminal.
std::string shown(std::initializer_list<std::int64_t> steps) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    Progress progress({.steps = 3, .out = out});
    for (const std::int64_t step : steps) progress.show({.step = step});
  }
  std::fclose(out);
  const std::unique_ptr<char, Free> owned(text);
  return {text, size};
}

TEST(Progress, ALineHasEverythingThatUsersWatch) {
  EXPECT_EQ(step_line(kMetrics, {.steps = 100}),
            "step 12/100 | loss 3.214 | norm 1.02 | 1,234 tok/s | 210 ms | peak 294.0 MiB");
  EXPECT_EQ(step_line(kMetrics, {.steps = 100, .budget_bytes = 300_MiB}),
            "step 12/100 | loss 3.214 | norm 1.02 | 1,234 tok/s | 210 ms | peak 294.0 MiB (98 % of budget)");
}

TEST(Progress, ANarrowTerminalKeepsLossSpeedAndTimeLeft) {
  const ProgressOptions options{.steps = 100, .budget_bytes = 300_MiB};
  const auto line = [&](std::size_t width) { return terminal_line(kMetrics, options, width); };
  EXPECT_EQ(line(200),
            "[##------------------] step 12/100 | loss 3.214 | norm 1.02 | 1,234 tok/s | 210 ms | "
            "peak 294.0 MiB (98 % of budget) | 18.5 s left");
  EXPECT_EQ(line(120),
            "[##------------------] step 12/100 | loss 3.214 | 1,234 tok/s | 210 ms | "
            "peak 294.0 MiB (98 % of budget) | 18.5 s left");
  EXPECT_EQ(line(79), "[##------------------] step 12/100 | loss 3.214 | 1,234 tok/s | 18.5 s left");
  EXPECT_EQ(line(60), "step 12/100 | loss 3.214 | 1,234 tok/s | 18.5 s left");
  EXPECT_EQ(line(40), "step 12/100 | loss 3.214 | 18.5 s left");
  EXPECT_EQ(line(30), "step 12/100 | loss 3.214");
  for (std::size_t width = 0; width < 150; ++width) EXPECT_LE(line(width).size(), width);
}

TEST(Progress, WithoutATerminalTheFirstAndTheLastStepAreLines) {
  const std::string text = shown({1, 2, 3});
  EXPECT_NE(text.find("step 1/3"), std::string::npos);
  EXPECT_NE(text.find("step 3/3"), std::string::npos);
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
}

TEST(Progress, TheBarFillsFromEmptyToFull) {
  EXPECT_EQ(bar(0, 10, 5), "[-----]");
  EXPECT_EQ(bar(5, 10, 4), "[##--]");
  EXPECT_EQ(bar(10, 10, 5), "[#####]");
  EXPECT_EQ(bar(11, 10, 5), "[#####]");
  EXPECT_EQ(bar(0, 0, 5), "[-----]");
}

TEST(Progress, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(6738415616), "6,738,415,616");
}

TEST(Progress, TimesAreInTheUnitThatReadsBest) {
  EXPECT_EQ(format_seconds(0.0004), "0 ms");
  EXPECT_EQ(format_seconds(0.21), "210 ms");
  EXPECT_EQ(format_seconds(0.9996), "1.0 s");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 5 min");
}

}  // namespace
}  // namespace snug::train
