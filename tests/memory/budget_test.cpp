// What a budget means on each kind of device. How a GPU's is held: budget_cuda_test.cpp.
#include "snug/memory/budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "snug/base/bytes.h"

namespace snug::memory {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);
const ProcessMemory kHeld{.reserved_bytes = 3_GiB, .process_bytes = 4_GiB};

TEST(Budget, OnTheCpuTensorsCountAndTheTrackerHoldsThem) {
  Budget budget(c10::kCPU, 2_GiB, /*outside_bytes=*/1_GiB);
  EXPECT_EQ(Budget::of_tracker(c10::kCPU, 2_GiB), 2_GiB);
  EXPECT_EQ(budget.use(1_GiB, kHeld), 1_GiB);
  EXPECT_EQ(budget.room_for_tensors(kHeld), 2_GiB) << "what lies outside does not count";
  EXPECT_NO_THROW(budget.require(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_EQ(budget.settle_outside(), 0u);
  EXPECT_EQ(budget.recheck(), "");
}

TEST(Budget, OnAGpuTheProcessCountsAndTheTrackerHoldsNothing) {
  const Budget budget(kGpu, std::nullopt);
  EXPECT_EQ(Budget::of_tracker(kGpu, 2_GiB), std::nullopt);
  EXPECT_EQ(budget.use(1_GiB, kHeld), 4_GiB);
  EXPECT_EQ(budget.room_for_tensors(kHeld), std::numeric_limits<std::int64_t>::max() - 1_GiB);
}

}  // namespace
}  // namespace snug::memory
