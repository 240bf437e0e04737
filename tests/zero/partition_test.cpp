#include "snug/zero/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "snug/base/error.h"

namespace snug::zero {
namespace {

std::int64_t sum_of(const Pieces& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0},
                         [](std::int64_t sum, const Piece& piece) { return sum + piece.count; });
}

void expect_one_after_the_other(const Pieces& pieces, std::int64_t elements) {
  std::int64_t end = 0;
  for (const Piece& piece : pieces) {
    EXPECT_GE(piece.count, 0);
    EXPECT_EQ(piece.begin, end);
    EXPECT_TRUE(piece.begin % kAlignment == 0 || piece.begin == elements);
    end = piece.begin + piece.count;
  }
  EXPECT_EQ(end, elements);
}

TEST(Divide, GivesEqualPiecesWhereItCan) {
  EXPECT_EQ(divide(4096, 4), (Pieces{{0, 1024}, {1024, 1024}, {2048, 1024}, {3072, 1024}}));
}

TEST(Divide, LeavesTheLastRanksLessAndPerhapsNothing) {
  EXPECT_EQ(divide(50, 3), (Pieces{{0, 24}, {24, 24}, {48, 2}}));
  EXPECT_EQ(divide(5, 3), (Pieces{{0, 5}, {5, 0}, {5, 0}}));
  EXPECT_EQ(divide(0, 2), (Pieces{{0, 0}, {0, 0}}));
}

TEST(Divide, RefusesNoRanks) {
  EXPECT_THROW(divide(8, 0), Error);
  EXPECT_THROW(buckets_of({{.elements = 8}}, {.ranks = 0}), Error);
  EXPECT_THROW(buckets_of({{.elements = 0}}, {.ranks = 2}), Error);
}

TEST(Buckets, HaveOneLargeParameterOrTheSmallOnesOfAKind) {
  const auto buckets =
      buckets_of({{.elements = 10}, {.elements = 5000}, {.elements = 20}, {.elements = 30, .kind = 1}},
                 {.ranks = 2, .small = 1000});
  ASSERT_EQ(buckets.size(), 3);
  ASSERT_EQ(buckets[0].members.size(), 2);
  EXPECT_EQ(buckets[0].members[1].parameter, 2);
  EXPECT_EQ(buckets[0].members[1].begin, 16);
  EXPECT_EQ(buckets[0].elements, 36);
  EXPECT_EQ(buckets[1].elements, 5000);
  EXPECT_EQ(buckets[2].kind, 1);
}

TEST(Buckets, GiveWholeParametersToWhoeverHasLeast) {
  std::vector<std::int64_t> owned;
  const PartitionOptions options{.ranks = 2, .whole_elements = &owned};
  const auto first = buckets_of({{.elements = 100, .is_whole = true}}, options);
  const auto then = buckets_of(
      {{.elements = 30, .is_whole = true}, {.elements = 50, .is_whole = true}, {.elements = 7}}, options);
  EXPECT_EQ(first[0].pieces, (Pieces{{0, 100}, {100, 0}}));
  EXPECT_EQ(then[0].pieces, (Pieces{{0, 0}, {0, 30}}));
  EXPECT_EQ(then[1].pieces, (Pieces{{0, 0}, {0, 50}}));
  EXPECT_EQ(owned, (std::vector<std::int64_t>{100, 80}));
}

// Whatever the parameters: every element has one owner, no rank has more than its part and one alignment, and
// all ranks find the same.
TEST(Buckets, DivideAnyParametersWithoutRestOrOverlap) {
  std::mt19937 random(22);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random() % end); };
  for (int round = 0; round < 300; ++round) {
    const int ranks = static_cast<int>(1 + below(9));
    std::vector<Parameter> parameters(static_cast<std::size_t>(1 + below(30)));
    for (Parameter& parameter : parameters)
      parameter = {.elements = 1 + below(below(2) ? 40 : 100'000),
                   .kind = static_cast<int>(below(3)),
                   .is_whole = below(8) == 0};
    const auto buckets = buckets_of(parameters, {.ranks = ranks, .small = 1 + below(50'000)});
    std::set<std::size_t> seen;
    for (const Bucket& bucket : buckets) {
      ASSERT_EQ(bucket.pieces.size(), static_cast<std::size_t>(ranks));
      expect_one_after_the_other(bucket.pieces, bucket.elements);
      std::int64_t end = 0;
      for (const Bucket::Member& member : bucket.members) {
        EXPECT_TRUE(seen.insert(member.parameter).second);
        EXPECT_EQ(member.elements, parameters[member.parameter].elements);
        EXPECT_EQ(bucket.kind, parameters[member.parameter].kind);
        EXPECT_EQ(member.begin % kAlignment, 0);
        EXPECT_LT(member.begin - end, kAlignment);
        end = member.begin + member.elements;
      }
      EXPECT_EQ(end, bucket.elements);
      EXPECT_EQ(sum_of(bucket.pieces), bucket.elements);
      if (parameters[bucket.members[0].parameter].is_whole) continue;
      for (const Piece& piece : bucket.pieces)
        EXPECT_LE(piece.count, (bucket.elements + ranks - 1) / ranks + kAlignment);
    }
    EXPECT_EQ(seen.size(), parameters.size());
  }
}

}  // namespace
}  // namespace snug::zero
