// The checksum against its published check value and a bit-by-bit version.
#include "snug/trace/crc32.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace snug::trace {
namespace {

std::uint32_t slow_crc32(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & -(crc & 1));
  }
  return ~crc;
}

TEST(Crc32, GivesThePublishedCheckValue) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(""), 0u);
}

TEST(Crc32, AgreesWithTheBitByBitVersionAtEveryLength) {
  std::mt19937 random(1);
  std::string bytes;
  for (int length = 0; length < 100; ++length) {
    EXPECT_EQ(crc32(bytes), slow_crc32(bytes)) << length;
    bytes.push_back(static_cast<char>(random()));
  }
}

}  // namespace
}  // namespace snug::trace
