// The model of torch's allocator, every rule by hand. MiB where no unit is given in a comment.
#include "snug/plan/caching_allocator.h"

#include <gtest/gtest.h>

#include <string>

#include "snug/base/error.h"

namespace snug::plan {
namespace {

using Handle = CachingAllocator::Handle;

Handle take(CachingAllocator& allocator, std::uint64_t bytes) {
  const auto handle = allocator.allocate(bytes);
  EXPECT_TRUE(handle) << bytes << " bytes were refused";
  return handle.value_or(0);
}

class Classic : public testing::Test {
 protected:
  Handle take(std::uint64_t bytes) { return plan::take(allocator_, bytes); }
  void expect(std::uint64_t allocated, std::uint64_t reserved) {
    EXPECT_EQ(allocator_.allocated_bytes(), allocated);
    EXPECT_EQ(allocator_.reserved_bytes(), reserved);
  }
  CachingAllocator allocator_;
};

class Expandable : public Classic {
 protected:
  Expandable() { allocator_ = CachingAllocator({.expandable_segments = true}); }
};

TEST_F(Classic, SizesAreMultiplesOf512) {
  take(1);
  expect(512, 2_MiB);
  take(512);
  expect(1024, 2_MiB);
  take(513);
  expect(2048, 2_MiB);
}

TEST_F(Classic, NothingTakesNoBlock) {
  const Handle none = take(0);
  allocator_.free(none);
  allocator_.free(none);
  expect(0, 0);
}

TEST_F(Classic, OneMiBIsSmallAndOneByteMoreIsLarge) {
  take(1_MiB);
  expect(1_MiB, 2_MiB);
  take(1_MiB);
  expect(2_MiB, 2_MiB);
  take(1_MiB + 1);
  expect(3_MiB + 512, 2_MiB + 20_MiB);
}

TEST_F(Classic, ASegmentHas20MiBBelow10AndWhatWasAskedFromThere) {
  take(10_MiB - 512);
  expect(10_MiB - 512, 20_MiB);
  take(10_MiB + 1024);  // 512 more than the segment has left: 12, of which 2 - 1024 bytes are split off
  expect(20_MiB + 512, 20_MiB + 12_MiB);
}

TEST_F(Classic, LargeSegmentsAreRoundedTo2MiB) {
  take(10_MiB);
  expect(10_MiB, 10_MiB);
  take(31_MiB + 1);  // 32 MiB, and 1 MiB - 512 are too little to split off
  expect(10_MiB + 32_MiB, 10_MiB + 32_MiB);
}

TEST_F(Classic, ALargeBlockIsSplitWhenMoreThan1MiBIsLeft) {
  const Handle whole = take(30_MiB);
  allocator_.free(whole);
  const Handle exactly = take(29_MiB);  // 1 MiB left: not more than 1 MiB
  expect(30_MiB, 30_MiB);
  allocator_.free(exactly);
  expect(0, 30_MiB);
  take(29_MiB - 512);  // 1 MiB + 512 left
  expect(29_MiB - 512, 30_MiB);
  ASSERT_EQ(allocator_.layout().size(), 2u);
  EXPECT_EQ(allocator_.layout()[1].bytes, 1_MiB + 512);
}

TEST_F(Classic, ASmallBlockIsSplitDownTo512) {
  take(1_MiB);
  take(1_MiB - 512);
  expect(2_MiB - 512, 2_MiB);
  take(512);
  expect(2_MiB, 2_MiB);
  take(1);
  expect(2_MiB + 512, 4_MiB);
}

TEST_F(Classic, TheSmallestBlockThatFitsIsTaken) {
  const Handle large = take(40_MiB), middle = take(24_MiB), small = take(12_MiB);
  const std::uint64_t of_middle = allocator_.address(middle);
  for (const Handle handle : {large, middle, small}) allocator_.free(handle);
  EXPECT_EQ(allocator_.address(take(20_MiB)), of_middle);
  expect(20_MiB, 76_MiB);
}

TEST_F(Classic, AmongEqualBlocksTheLowestAddressIsTaken) {
  const Handle first = take(12_MiB), second = take(12_MiB);
  const std::uint64_t lower = allocator_.address(first);
  EXPECT_LT(lower, allocator_.address(second));
  allocator_.free(second);
  allocator_.free(first);
  EXPECT_EQ(allocator_.address(take(12_MiB)), lower);
}

TEST(CachingAllocator, AddressesOfSegmentsAreTheCallers) {
  std::uint64_t next = 100_GiB;
  CachingAllocator allocator({.place_segment = [&](std::uint64_t bytes) { return next -= bytes; }});
  const Handle first = take(allocator, 12_MiB), second = take(allocator, 12_MiB);
  EXPECT_EQ(allocator.address(first), 100_GiB - 12_MiB);
  const std::uint64_t lower = allocator.address(second);
  allocator.free(first);
  allocator.free(second);
  EXPECT_EQ(allocator.address(take(allocator, 12_MiB)), lower);
}

TEST_F(Classic, ASmallRequestNeverUsesALargeBlock) {
  allocator_.free(take(12_MiB));
  take(1_MiB);
  expect(1_MiB, 12_MiB + 2_MiB);
}

TEST_F(Classic, AFreedBlockJoinsItsFreeNeighbours) {
  const Handle a = take(6_MiB), b = take(6_MiB), c = take(6_MiB);  // 2 MiB of 20 are left
  expect(18_MiB, 20_MiB);
  allocator_.free(a);
  allocator_.free(c);  // with the 2 MiB behind it
  take(8_MiB);         // where c was
  expect(14_MiB, 20_MiB);
  allocator_.free(b);  // with a before it
  take(12_MiB);
  expect(20_MiB, 20_MiB);
}

TEST_F(Classic, SegmentsNeverJoin) {
  const Handle a = take(12_MiB), b = take(12_MiB);
  allocator_.free(a);
  allocator_.free(b);
  take(24_MiB);
  expect(24_MiB, 48_MiB);
}

TEST_F(Classic, PeaksStay) {
  const Handle a = take(12_MiB);
  allocator_.free(a);
  take(14_MiB);
  EXPECT_EQ(allocator_.peak_allocated_bytes(), 14_MiB);
  EXPECT_EQ(allocator_.peak_reserved_bytes(), 26_MiB);
  allocator_.empty_cache();
  expect(14_MiB, 14_MiB);
  EXPECT_EQ(allocator_.peak_reserved_bytes(), 26_MiB);
}

TEST_F(Classic, TheCacheKeepsSegmentsInUse) {
  const Handle a = take(6_MiB);
  take(6_MiB);
  allocator_.free(a);
  allocator_.free(take(12_MiB));
  expect(6_MiB, 20_MiB + 12_MiB);
  allocator_.empty_cache();
  expect(6_MiB, 20_MiB);
  EXPECT_EQ(allocator_.retries(), 0u);
}

TEST(CachingAllocator, AtTheLimitTheCacheIsGivenBackFirst) {
  CachingAllocator allocator({.limit_bytes = 40_MiB});
  allocator.free(take(allocator, 12_MiB));
  allocator.free(take(allocator, 16_MiB));  // 28 MiB are cached
  take(allocator, 24_MiB);                  // 28 + 24 > 40
  EXPECT_EQ(allocator.reserved_bytes(), 24_MiB);
  EXPECT_EQ(allocator.retries(), 1u);
  take(allocator, 16_MiB);  // 24 + 16 = 40: reached, not exceeded
  EXPECT_EQ(allocator.retries(), 1u);
}

TEST(CachingAllocator, BeyondTheLimitNothingIsGiven) {
  CachingAllocator allocator({.limit_bytes = 40_MiB});
  const Handle half = take(allocator, 20_MiB);
  allocator.free(take(allocator, 1));
  EXPECT_FALSE(allocator.allocate(22_MiB));
  EXPECT_EQ(allocator.retries(), 1u);
  EXPECT_EQ(allocator.reserved_bytes(), 20_MiB) << "the cache was given back all the same";
  EXPECT_EQ(allocator.allocated_bytes(), 20_MiB);
  allocator.free(half);
  take(allocator, 22_MiB);
}

TEST(CachingAllocator, ASegmentInUseCannotBeGivenBack) {
  CachingAllocator allocator({.limit_bytes = 30_MiB});
  take(allocator, 2_MiB);                    // 18 MiB of its segment are free
  EXPECT_FALSE(allocator.allocate(19_MiB));  // 20 + 20 > 30
  EXPECT_EQ(allocator.reserved_bytes(), 20_MiB);
  take(allocator, 18_MiB);
}

TEST_F(Expandable, SmallPagesHave2MiBAndLargePages20) {
  take(1);
  expect(512, 2_MiB);
  take(2_MiB);
  expect(2_MiB + 512, 2_MiB + 20_MiB);
  take(50_MiB);  // 18 are free at the end, 32 are missing: two pages
  expect(52_MiB + 512, 2_MiB + 60_MiB);
}

TEST_F(Expandable, OnlyWhatIsMissingIsMapped) {
  take(12_MiB);
  expect(12_MiB, 20_MiB);
  take(28_MiB);  // 8 + 20
  expect(40_MiB, 40_MiB);
  take(20_MiB + 512);
  expect(60_MiB + 512, 80_MiB);
}

TEST_F(Expandable, LargeBlocksAreSplitDownTo512) {
  take(20_MiB - 512);
  expect(20_MiB - 512, 20_MiB);
  EXPECT_EQ(allocator_.layout()[1].bytes, 512u);
  EXPECT_EQ(allocator_.layout()[2].state, BlockState::Unmapped);
}

TEST_F(Expandable, NeighboursJoinWhereClassicSegmentsDoNot) {
  const Handle a = take(12_MiB), b = take(12_MiB);
  allocator_.free(a);
  allocator_.free(b);
  expect(0, 40_MiB);
  take(24_MiB);
  expect(24_MiB, 40_MiB);
}

TEST_F(Expandable, TheBlockAtTheEndIsBrokenLast) {
  const Handle hole = take(18_MiB);
  take(14_MiB);  // 32 of 40 are taken, 8 are free at the end
  allocator_.free(hole);
  EXPECT_EQ(allocator_.address(take(6_MiB)), allocator_.layout()[0].address)
      << "not in the 8, which can grow";
  expect(20_MiB, 40_MiB);
}

TEST_F(Expandable, TheLowestGapIsFilledFirst) {
  const Handle low = take(40_MiB);
  take(20_MiB);
  const std::uint64_t bottom = allocator_.address(low);
  allocator_.free(low);
  allocator_.empty_cache();
  expect(20_MiB, 20_MiB);
  EXPECT_EQ(allocator_.address(take(30_MiB)), bottom);
  expect(50_MiB, 60_MiB);
  EXPECT_EQ(allocator_.address(take(12_MiB)), bottom + 60_MiB) << "10 MiB are free in the gap";
}

TEST_F(Expandable, WholeFreePagesAreGivenBack) {
  take(10_MiB);
  const Handle middle = take(60_MiB);
  take(10_MiB);  // [0, 10) [10, 70) [70, 80): four pages
  expect(80_MiB, 80_MiB);
  allocator_.free(middle);
  allocator_.empty_cache();  // [20, 60)
  expect(20_MiB, 40_MiB);
  std::string states;
  for (const BlockInfo& block : allocator_.layout()) states += "FAU"[static_cast<int>(block.state)];
  EXPECT_EQ(states, "AFUFAU");
  take(60_MiB);  // and is mapped again, between the two free ends
  expect(80_MiB, 80_MiB);
}

TEST_F(Expandable, AnEmptySegmentIsGivenBackWithItsAddresses) {
  allocator_.free(take(50_MiB));
  allocator_.free(take(1));
  allocator_.empty_cache();
  expect(0, 0);
  EXPECT_TRUE(allocator_.layout().empty());
}

TEST(CachingAllocator, WhenAddressesRunOutAnotherExpandableSegmentBegins) {
  CachingAllocator allocator(
      {.expandable_segments = true, .device_bytes = 80_MiB});  // 90 -> 100 MiB of addresses
  take(allocator, 60_MiB);
  take(allocator, 60_MiB);
  EXPECT_EQ(allocator.reserved_bytes(), 120_MiB);
  EXPECT_EQ(allocator.layout().size(), 4u) << "a block and unmapped addresses, twice";
  EXPECT_FALSE(allocator.allocate(101_MiB));
}

TEST(CachingAllocator, ExpandablePagesComeAfterTheLimitWasChecked) {
  CachingAllocator allocator({.expandable_segments = true, .limit_bytes = 12_MiB});
  take(allocator, 12_MiB);  // 12 are within the limit, a page has 20
  EXPECT_EQ(allocator.reserved_bytes(), 20_MiB);
  EXPECT_FALSE(allocator.allocate(10_MiB));
  take(allocator, 8_MiB);
}

// A request that finds a free end of 200 MiB takes 110 more, but is counted whole.
TEST(CachingAllocator, ExpandableSegmentsSayWhichLimitRefusesNothingAtFirst) {
  const auto run = [](CachingAllocator& allocator) {
    const auto first = take(allocator, 300_MiB);
    const auto second = take(allocator, 200_MiB);
    allocator.free(second);
    take(allocator, 310_MiB);
    allocator.free(first);
  };
  CachingAllocator free({.expandable_segments = true});
  run(free);
  EXPECT_EQ(free.needed_limit_bytes(), 500_MiB + 310_MiB);
  EXPECT_LT(free.peak_reserved_bytes(), 640_MiB);
  CachingAllocator enough({.expandable_segments = true, .limit_bytes = free.needed_limit_bytes()});
  run(enough);
  EXPECT_EQ(enough.retries(), 0u);
  CachingAllocator less({.expandable_segments = true, .limit_bytes = free.needed_limit_bytes() - 1});
  run(less);
  EXPECT_EQ(less.retries(), 1u);
}

TEST(CachingAllocator, ExpandablePagesAreUnmappedUnderPressure) {
  CachingAllocator allocator({.expandable_segments = true, .limit_bytes = 100_MiB});
  const Handle low = take(allocator, 60_MiB);
  take(allocator, 20_MiB);
  allocator.free(low);
  take(allocator, 80_MiB);  // 80 + 80 > 100; 60 given back, 80 mapped behind the 20
  EXPECT_EQ(allocator.reserved_bytes(), 100_MiB);
  EXPECT_EQ(allocator.peak_reserved_bytes(), 100_MiB);
  EXPECT_EQ(allocator.retries(), 1u);
}

TEST_F(Classic, WrongHandlesAreNamed) {
  const Handle handle = take(1);
  allocator_.free(handle);
  EXPECT_THROW(allocator_.free(handle), Error);
  EXPECT_THROW(allocator_.free(77), Error);
  EXPECT_THROW(allocator_.address(0), Error);
}

TEST_F(Classic, ImpossibleSizesAreNamed) {
  EXPECT_THROW(static_cast<void>(allocator_.allocate(1ull << 60)), Error);
  EXPECT_THROW(CachingAllocator({.device_bytes = 0}), Error);
}

}  // namespace
}  // namespace snug::plan
