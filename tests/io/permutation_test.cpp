#include "snug/io/permutation.h"

#include <gtest/gtest.h>

#include <vector>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

std::vector<std::uint64_t> all(std::uint64_t size, std::uint64_t seed) {
  const Permutation permutation(size, seed);
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < size; ++i) values.push_back(permutation(i));
  return values;
}

TEST(Permutation, HoldsEveryIndexOnceForEverySize) {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    std::vector<bool> seen(size, false);
    for (std::uint64_t value : all(size, size * 7)) {
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << "size " << size << " gives " << value << " twice";
      seen[value] = true;
    }
  }
}

TEST(Permutation, HoldsEveryIndexOnceAroundPowersOfTwo) {
  for (std::uint64_t size : {1023u, 1024u, 1025u, 4096u, 4097u, 65535u, 65536u, 65537u, 100003u}) {
    std::vector<bool> seen(size, false);
    for (std::uint64_t value : all(size, 1)) {
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << "size " << size << " gives " << value << " twice";
      seen[value] = true;
    }
  }
}

TEST(Permutation, IsTheSameForTheSameSeedAndAnotherForAnother) {
  EXPECT_EQ(all(100, 5), all(100, 5));
  EXPECT_NE(all(100, 5), all(100, 6));
}

TEST(Permutation, LeavesFewIndicesInPlace) {
  const auto values = all(10000, 3);
  int in_place = 0;
  int neighbours = 0;
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    if (values[i] == i) ++in_place;
    if (i > 0 && values[i] == values[i - 1] + 1) ++neighbours;
  }
  EXPECT_LT(in_place, 10);  // a random permutation has one on average
  EXPECT_LT(neighbours, 10);
}

TEST(Permutation, WorksOnSizesNoArrayCouldHold) {
  const std::uint64_t size = (std::uint64_t{1} << 62) + 12345;
  const Permutation permutation(size, 9);
  for (std::uint64_t i : {std::uint64_t{0}, std::uint64_t{1}, size / 2, size - 1})
    EXPECT_LT(permutation(i), size);
  EXPECT_NE(permutation(0), permutation(1));
}

TEST(Permutation, RefusesToPermuteNothing) {
  EXPECT_EQ(testing::message_of<Error>([] { Permutation(0, 1); }),
            "a permutation needs a size of 1 to 2^63, got 0");
}

}  // namespace
}  // namespace snug::io
