#include "snug/hooks/device.h"

#include <gtest/gtest.h>

namespace snug::hooks {
namespace {

TEST(Device, WhatHasAnIndexOrNeedsNoneStays) {
  for (const c10::Device device :
       {c10::Device(c10::kCPU), c10::Device(c10::kMeta), c10::Device(c10::kCUDA, 3)})
    EXPECT_EQ(with_index(device), device);
}

TEST(Device, AGpuAlwaysGetsAnIndex) {
  EXPECT_TRUE(with_index(c10::kCUDA).has_index()) << "also where there is no GPU";
}

}  // namespace
}  // namespace snug::hooks
