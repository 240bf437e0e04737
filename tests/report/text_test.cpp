// Reports as people see them.
#include "snug/report/text.h"

#include <gtest/gtest.h>

#include <sstream>

#include "snug/base/bytes.h"

namespace snug::report {
namespace {

using trace::CategoryBytes;
using trace::Snapshot;

Snapshot example() {
  return {.total = 10_GiB,
          .bytes = CategoryBytes{4_GiB, 2_GiB, 0, 0, 3_GiB, 1_GiB, 0},
          .regions = {{"", CategoryBytes{4_GiB, 2_GiB, 0, 0, 0, 0, 0}},
                      {"block.1", CategoryBytes{0, 0, 0, 0, 2_GiB, 1_GiB, 0}},
                      {"block.0", CategoryBytes{0, 0, 0, 0, 1_GiB, 0, 0}}}};
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(Table, ShowsCategoriesThenTheLargestRegions) {
  EXPECT_EQ(table(example(), {.regions = 3}),
            "category         bytes    share\n"
            "parameters    4.00 GiB   40.0 %\n"
            "gradients     2.00 GiB   20.0 %\n"
            "optimizer      0 bytes    0.0 %\n"
            "inputs         0 bytes    0.0 %\n"
            "activations   3.00 GiB   30.0 %\n"
            "temporaries   1.00 GiB   10.0 %\n"
            "other          0 bytes    0.0 %\n"
            "total        10.00 GiB  100.0 %\n"
            "\n"
            "region      category        bytes   share\n"
            "(outside)   parameters   4.00 GiB  40.0 %\n"
            "(outside)   gradients    2.00 GiB  20.0 %\n"
            "block.1     activations  2.00 GiB  20.0 %\n"
            "and 2 more               2.00 GiB  20.0 %\n");
}

TEST(Table, LeavesTheRegionsOutWhenAskedTo) {
  EXPECT_EQ(table(example(), {.regions = 0}).find("region"), std::string::npos);
}

TEST(Table, AnEmptyAccountHasNoShares) {
  const std::string text = table({});
  EXPECT_NE(text.find("total        0 bytes      -\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("region"), std::string::npos);
}

TEST(Table, ShortensLongNamesAndDisarmsControlCharacters) {
  Snapshot snapshot = example();
  snapshot.regions[1].name = "begin" + std::string(500, 'x') + "end";
  snapshot.regions[2].name = "a\x1b[31m\n";
  const std::string text = table(snapshot);
  expect_narrow(text);
  EXPECT_NE(text.find("beginxxx"), std::string::npos);
  EXPECT_NE(text.find("xxxend "), std::string::npos);
  EXPECT_NE(text.find("a?[31m? "), std::string::npos) << text;
}

TEST(Table, AlignsNamesThatAreNotAscii) {
  Snapshot snapshot = example();
  snapshot.regions[1].name =
      "bl\xc3\xb6"
      "ck";
  const std::string text = table(snapshot, {.regions = 3});
  EXPECT_NE(text.find("bl\xc3\xb6"
                      "ck       activations"),
            std::string::npos)
      << text;
}

TEST(Text, IsTheWholeReport) {
  Summary summary{.events = 1'234,
                  .steps = 2,
                  .peak = example(),
                  .category_peaks = {4_GiB, 2_GiB, 0, 0, 5_GiB, 1_GiB, 0},
                  .live_at_end = 512,
                  .operators = {{"aten::mm", 12, 3_GiB}, {"aten::add", 3, 0}},
                  .saves = {{"block.0", 4, 1_GiB}},
                  .unpacks = {{"block.0", 4, 0}},
                  .copies = {{"to_host", 1, 1_MiB}},
                  .seconds = 1.5,
                  .info = {.device = "cuda:0", .about = {{"model", "tiny"}, {"batch", 8}}}};
  const std::string report = text(summary);
  EXPECT_TRUE(
      report.starts_with("cuda:0: 1234 events, 2 steps, 1.500 s\n"
                         "model: tiny\n"
                         "batch: 8\n"
                         "peak 10.00 GiB, live at the end 512 bytes\n"
                         "\n"
                         "At the peak\n"
                         "category         bytes    share  highest alone\n"))
      << report;
  EXPECT_NE(report.find("activations   3.00 GiB   30.0 %       5.00 GiB\n"), std::string::npos) << report;
  EXPECT_TRUE(
      report.ends_with("\nOperators, over 2 steps\n"
                       "operator   calls  allocated\n"
                       "aten::mm      12   3.00 GiB\n"
                       "aten::add      3    0 bytes\n"
                       "\nSaved for the backward, over 2 steps\n"
                       "region   tensors     bytes\n"
                       "block.0        4  1.00 GiB\n"
                       "\nAsked for by the backward, over 2 steps\n"
                       "region   tensors    bytes\n"
                       "block.0        4  0 bytes\n"
                       "\nCopied, over 2 steps\n"
                       "direction  copies    bytes\n"
                       "to_host         1  1.0 MiB\n"))
      << report;
  expect_narrow(report);
}

TEST(Text, SaysThatTheTraceWasCutShort) {
  EXPECT_EQ(text({}).find("cut short"), std::string::npos);
  EXPECT_NE(
      text({.cut_short = true}).find("note: the trace was cut short; everything below ends at the cut\n"),
      std::string::npos);
}

TEST(Text, FitsWhateverTheTraceHolds) {
  Summary summary{.events = ~0ull, .steps = ~0ull, .peak = example(), .live_at_end = ~0ull};
  summary.seconds = 1e9;
  summary.info.device = std::string(300, 'd');
  summary.info.about = {
      {"command", std::string(1'000, 'c')}, {std::string(200, 'k'), {1, 2}}, {"bad", "\xff"}};
  for (int i = 0; i < 40; ++i)
    summary.operators.push_back({std::string(200, 'o') + std::to_string(i), ~0ull, ~0ull});
  const std::string report = text(summary);
  expect_narrow(report);
  EXPECT_NE(report.find("and 25 more\n"), std::string::npos);
}

}  // namespace
}  // namespace snug::report
