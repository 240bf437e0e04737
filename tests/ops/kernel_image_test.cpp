#include "snug/ops/kernel_image.h"

#include <gtest/gtest.h>

namespace snug::ops {
namespace {

TEST(KernelImage, NamesAGpuThatCannotBeUsed) {
  auto message = missing_kernel_image(99);
  EXPECT_NE(message.find("GPU 99"), std::string::npos) << message;
}

}  // namespace
}  // namespace snug::ops
