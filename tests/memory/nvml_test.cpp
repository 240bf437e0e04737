#include "snug/memory/nvml.h"

#include <gtest/gtest.h>

#include "snug/base/bytes.h"

namespace snug::memory {
namespace {

TEST(SeenFromOutside, WhatTheDriverDoesNotNameIsOursToo) {
  const NvmlMemory before{.used = 600_MiB};
  EXPECT_EQ(seen_from_outside(before, {.used = 600_MiB + 1033_MiB, .own = 1024_MiB}), 1033_MiB);
  EXPECT_EQ(seen_from_outside(before, {.used = 1_GiB, .own = 1_GiB}), 1_GiB) << "never less than is named";
}

TEST(SeenFromOutside, WhatOthersTakeOrGiveBackIsNot) {
  const NvmlMemory before{.used = 5_GiB, .others = 4_GiB};
  EXPECT_EQ(seen_from_outside(before, {.used = 10_GiB, .own = 2_GiB, .others = 7_GiB}), 2_GiB);
  EXPECT_EQ(seen_from_outside(before, {.used = 5_GiB, .own = 2_GiB, .others = 1_GiB}), 3_GiB);
}

TEST(SeenFromOutside, AContextThatWasThereCounts) {
  const NvmlMemory before{.used = 2_GiB, .own = 1_GiB};
  EXPECT_EQ(seen_from_outside(before, {.used = 5_GiB, .own = 3_GiB}), 4_GiB);
}

// Our pid is another one inside: whoever is listed may be us.
TEST(SeenFromOutside, InAContainerAllGrowthIsOurs) {
  EXPECT_EQ(seen_from_outside({.used = 1_GiB}, {.used = 4_GiB, .others = 3_GiB}), 3_GiB);
  EXPECT_EQ(seen_from_outside({.used = 4_GiB}, {.used = 1_GiB}), 0u) << "others gave back";
}

}  // namespace
}  // namespace snug::memory
