// What a device needs beside tensors. Plans themselves are tested in tests/train/plan_test.cpp, with steps.
#include "snug/plan/planner.h"

#include <gtest/gtest.h>

#include "snug/base/bytes.h"

namespace snug::plan {
namespace {

TEST(Overhead, PinnedHostMemoryTakesPageTablesOnAGpu) {
  const Overhead gpu = overhead_of(preset("h200")), cpu = overhead_of(preset("cpu"));
  EXPECT_EQ(gpu.outside_with(0), preset("h200").outside_bytes);
  for (const std::uint64_t host : {1_MiB, 1_GiB, 10_GiB, 100_GiB}) {
    const std::uint64_t tables = gpu.outside_with(host) - gpu.outside_bytes;
    EXPECT_GE(tables, host / 512 + 2_MiB) << host;
    EXPECT_LE(tables, host / 512 + 4_MiB) << host;
    EXPECT_EQ(gpu.on_top_of(1_GiB, host), gpu.on_top_of(1_GiB) + tables);
    EXPECT_EQ(cpu.on_top_of(1_GiB, host), 1_GiB) << "nothing is pinned";
  }
}

}  // namespace
}  // namespace snug::plan
