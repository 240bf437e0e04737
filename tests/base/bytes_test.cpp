// Sizes in and out.
#include "snug/base/bytes.h"

#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

TEST(ParseBytes, ReadsEveryUnit) {
  EXPECT_EQ(parse_bytes("12GiB"), 12_GiB);
  EXPECT_EQ(parse_bytes("12G"), 12_GiB);
  EXPECT_EQ(parse_bytes("12GB"), 12'000'000'000u);
  EXPECT_EQ(parse_bytes("800MiB"), 800_MiB);
  EXPECT_EQ(parse_bytes("12M"), 12_MiB);
  EXPECT_EQ(parse_bytes("12MB"), 12'000'000u);
  EXPECT_EQ(parse_bytes("3KiB"), 3_KiB);
  EXPECT_EQ(parse_bytes("3K"), 3_KiB);
  EXPECT_EQ(parse_bytes("3KB"), 3'000u);
  EXPECT_EQ(parse_bytes("2TiB"), 2048_GiB);
  EXPECT_EQ(parse_bytes("2T"), 2048_GiB);
  EXPECT_EQ(parse_bytes("2TB"), 2'000'000'000'000u);
  EXPECT_EQ(parse_bytes("123"), 123u);
  EXPECT_EQ(parse_bytes("123B"), 123u);
}

TEST(ParseBytes, PlainBytesAreExactWhereADoubleIsNot) {
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993u);
  EXPECT_EQ(parse_bytes("9223372036854775807"), 9223372036854775807u);
}

TEST(ParseBytes, RoundsFractionsToTheNearestByte) {
  EXPECT_EQ(parse_bytes("1.5GiB"), 1536_MiB);
  EXPECT_EQ(parse_bytes("0.5KiB"), 512u);
  EXPECT_EQ(parse_bytes("0.0006KB"), 1u);
  EXPECT_EQ(parse_bytes("1.0004KB"), 1000u);
  EXPECT_EQ(parse_bytes("0.1GiB"), 107374182u);
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const char* text : {"",
                           "12Gib",
                           "12gib",
                           "12gb",
                           "-3",
                           "+3",
                           "0",
                           "0GiB",
                           "0.0GiB",
                           "1e99GiB",
                           "1e3",
                           "nan",
                           "inf",
                           "NaN",
                           "Infinity",
                           " 12GiB",
                           "12GiB ",
                           "12 GiB",
                           "GiB",
                           ".5GiB",
                           "1.GiB",
                           "1..5GiB",
                           "1.2.3GiB",
                           "1.5",
                           "1.5B",
                           "0x10",
                           "12GiBs",
                           "9223372036854775808",
                           "99999999999999999999999",
                           "8388608TiB",
                           "8589934592GiB",
                           "0.0000001KiB",
                           "1,5GiB"}) {
    EXPECT_EQ(
        testing::message_of<Error>([&] { parse_bytes(text); }),
        concat('"', text, "\" is not a size: expected a number with GiB, MiB, KiB, GB, MB, KB or none for ",
               "bytes, such as 12GiB or 800MiB"));
  }
}

TEST(ParseBytes, TakesTheLargestSizeBelow2To63) {
  EXPECT_EQ(parse_bytes("8388607TiB"), 8388607u * 1024_GiB);
}

TEST(FormatBytes, ChoosesTheUnitBySize) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(17), "17 bytes");
  EXPECT_EQ(format_bytes(1_KiB - 1), "1023 bytes");
  EXPECT_EQ(format_bytes(4_KiB), "4.0 KiB");
  EXPECT_EQ(format_bytes(12_MiB + 300_KiB), "12.3 MiB");
  EXPECT_EQ(format_bytes(1536_MiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(2048_GiB), "2048.00 GiB");
}

}  // namespace
}  // namespace snug
