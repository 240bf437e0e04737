// The model of torch's allocator: what must hold for any sequence.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "snug/plan/caching_allocator.h"
#include "tests/plan/random_steps.h"

namespace snug::plan {
namespace {

struct Config {
  bool expandable;
  std::optional<std::uint64_t> limit;
};

class AnySequence : public testing::TestWithParam<Config> {
 protected:
  struct Live {
    CachingAllocator::Handle handle;
    std::uint64_t bytes;
  };
  CachingAllocator make() const {
    return CachingAllocator({.expandable_segments = GetParam().expandable, .limit_bytes = GetParam().limit});
  }
  // One step; true when it was an allocation that got a block.
  bool play(CachingAllocator& allocator, RandomSteps& steps) {
    const Step step = steps.next(live_.size(), live_bytes_);
    if (step.bytes == 0) {
      allocator.free(live_[step.which].handle);
      live_bytes_ -= live_[step.which].bytes;
      live_[step.which] = live_.back();
      live_.pop_back();
      return false;
    }
    const auto handle = allocator.allocate(step.bytes);
    if (!handle) return false;
    live_.push_back({*handle, step.bytes});
    live_bytes_ += step.bytes;
    return true;
  }
  void free_all(CachingAllocator& allocator) {
    for (const Live& live : live_) allocator.free(live.handle);
    live_.clear();
    live_bytes_ = 0;
  }
  std::vector<Live> live_;
  std::uint64_t live_bytes_ = 0;
};

// Blocks tile their segments, neighbours are not both free, and the sums are the statistics.
void expect_consistent(const CachingAllocator& allocator) {
  const auto layout = allocator.layout();
  std::uint64_t allocated = 0, reserved = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    ASSERT_EQ(layout[i].bytes % 512, 0u);
    if (layout[i].state == BlockState::Allocated) allocated += layout[i].bytes;
    if (layout[i].state != BlockState::Unmapped) reserved += layout[i].bytes;
    if (i == 0 || layout[i].segment != layout[i - 1].segment) {
      ASSERT_EQ(layout[i].address, layout[i].segment);
      continue;
    }
    ASSERT_EQ(layout[i].address, layout[i - 1].address + layout[i - 1].bytes);
    ASSERT_TRUE(layout[i].state == BlockState::Allocated || layout[i].state != layout[i - 1].state);
  }
  ASSERT_EQ(allocated, allocator.allocated_bytes());
  ASSERT_EQ(reserved, allocator.reserved_bytes());
}

TEST_P(AnySequence, BlocksTileTheirSegments) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CachingAllocator allocator = make();
    RandomSteps steps(seed, 1_GiB);
    for (int i = 0; i < 3000; ++i) {
      play(allocator, steps);
      if (i % 7 == 0) expect_consistent(allocator);
      ASSERT_FALSE(HasFailure()) << "seed " << seed << " step " << i;
      ASSERT_GE(allocator.allocated_bytes(), live_bytes_);
      ASSERT_GE(allocator.reserved_bytes(), allocator.allocated_bytes());
      ASSERT_GE(allocator.peak_reserved_bytes(), allocator.reserved_bytes());
      ASSERT_LT(allocator.reserved_bytes(), GetParam().limit.value_or(1024_GiB) + 20_MiB);
    }
    EXPECT_EQ(allocator.retries() > 0, GetParam().limit.has_value());
    free_all(allocator);
  }
}

TEST_P(AnySequence, FreeingEverythingLeavesOneFreeBlockPerSegment) {
  CachingAllocator allocator = make();
  RandomSteps steps(42, 1_GiB);
  for (int i = 0; i < 5000; ++i) play(allocator, steps);
  const std::uint64_t reserved = allocator.reserved_bytes();
  free_all(allocator);
  EXPECT_EQ(allocator.allocated_bytes(), 0u);
  EXPECT_EQ(allocator.reserved_bytes(), reserved) << "a free gives nothing back";
  std::uint64_t segment = ~0ull;
  bool was_free = false;
  for (const BlockInfo& block : allocator.layout()) {
    EXPECT_NE(block.state, BlockState::Allocated);
    const bool is_free = block.state == BlockState::Free;
    EXPECT_TRUE(GetParam().expandable || block.segment != segment);
    EXPECT_FALSE(block.segment == segment && is_free && was_free);
    segment = block.segment;
    was_free = is_free;
  }
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 0u);
  EXPECT_TRUE(allocator.layout().empty());
}

TEST_P(AnySequence, TheSameSequenceGivesTheSameAddresses) {
  std::vector<std::uint64_t> addresses[2];
  for (auto& seen : addresses) {
    CachingAllocator allocator = make();
    RandomSteps steps(7, 1_GiB);
    for (int i = 0; i < 3000; ++i)
      if (play(allocator, steps)) seen.push_back(allocator.address(live_.back().handle));
    free_all(allocator);
  }
  EXPECT_GT(addresses[0].size(), 500u);
  EXPECT_EQ(addresses[0], addresses[1]);
}

TEST_P(AnySequence, ACopyGoesOnByItself) {
  CachingAllocator allocator = make();
  RandomSteps steps(3, 1_GiB);
  for (int i = 0; i < 1000; ++i) play(allocator, steps);
  CachingAllocator copy = allocator;
  const std::uint64_t allocated = copy.allocated_bytes();
  free_all(allocator);
  EXPECT_EQ(copy.allocated_bytes(), allocated);
  ASSERT_NO_FATAL_FAILURE(expect_consistent(copy));
}

// As torch's snapshot would tell it: blocks with memory, by segment.
trace::AllocatorLayout told(const CachingAllocator& allocator) {
  trace::AllocatorLayout layout;
  for (const BlockInfo& block : allocator.layout()) {
    if (layout.segments.empty() || layout.segments.back().address != block.segment)
      layout.segments.push_back({.address = block.segment, .is_small = block.small, .grows = block.grows});
    auto& segment = layout.segments.back();
    segment.bytes += block.bytes;
    if (block.state != BlockState::Unmapped)
      segment.blocks.push_back({.address = block.address,
                                .bytes = block.bytes,
                                .is_free = block.state == BlockState::Free,
                                .id = block.address + 1});
  }
  return layout;
}

TEST_P(AnySequence, OneThatBeginsWithALayoutGoesOnAsTheOneThatHadIt) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CachingAllocator first = make();
    RandomSteps steps(seed, 600_MiB);
    for (int i = 0; i < 1000; ++i) play(first, steps);
    if (seed % 2 == 0) first.empty_cache();
    std::map<std::uint64_t, CachingAllocator::Handle> there;  // by address
    CachingAllocator second({.expandable_segments = GetParam().expandable, .limit_bytes = GetParam().limit},
                            told(first), [&](const auto& block, CachingAllocator::Handle handle) {
                              EXPECT_EQ(block.id, block.address + 1);
                              there[block.address] = handle;
                            });
    ASSERT_NO_FATAL_FAILURE(expect_consistent(second));
    EXPECT_EQ(second.reserved_bytes(), first.reserved_bytes());
    std::vector<CachingAllocator::Handle> others;  // beside live_
    for (const Live& live : live_) others.push_back(there.at(first.address(live.handle)));
    for (int i = 0; i < 1000; ++i) {
      const Step step = steps.next(live_.size(), live_bytes_);
      if (step.bytes == 0) {
        first.free(live_[step.which].handle);
        second.free(others[step.which]);
        live_bytes_ -= live_[step.which].bytes;
        live_[step.which] = live_.back();
        others[step.which] = others.back();
        live_.pop_back();
        others.pop_back();
      } else {
        const auto handle = first.allocate(step.bytes), other = second.allocate(step.bytes);
        ASSERT_EQ(handle.has_value(), other.has_value());
        if (!handle) continue;
        live_.push_back({*handle, step.bytes});
        live_bytes_ += step.bytes;
        others.push_back(*other);
      }
      ASSERT_EQ(second.reserved_bytes(), first.reserved_bytes()) << "seed " << seed << " step " << i;
    }
    ASSERT_NO_FATAL_FAILURE(expect_consistent(second));
    free_all(first);
  }
}

INSTANTIATE_TEST_SUITE_P(Allocators, AnySequence,
                         testing::Values(Config{false, {}}, Config{true, {}}, Config{false, 700_MiB},
                                         Config{true, 700_MiB}),
                         [](const auto& info) {
                           return std::string(info.param.expandable ? "Expandable" : "Classic") +
                                  (info.param.limit ? "Limited" : "");
                         });

}  // namespace
}  // namespace snug::plan
