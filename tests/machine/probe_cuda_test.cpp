// A probe of a GPU, at sizes that take a moment: what it measures is there, not how much it is.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "snug/base/bytes.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/probe.h"

namespace snug::machine {
namespace {

TEST(ProbeCuda, MeasuresTheGpuAndItsLink) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the probe of one was not tested";
  const plan::Hardware hardware = probe({.device = c10::kCUDA,
                                         .layers = 2,
                                         .hidden = 256,
                                         .intermediate = 512,
                                         .vocabulary = 1024,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = 128,
                                         .tokens = {128, 256},
                                         .copy_bytes = 4_MiB,
                                         .adam_parameters = 1000,
                                         .least_seconds = 0});
  EXPECT_NO_THROW(plan::validate(hardware, "probe"));
  EXPECT_TRUE(hardware.is_gpu);
  EXPECT_FALSE(hardware.is_estimate);
  EXPECT_EQ(hardware.name, device_name(c10::kCUDA));
  EXPECT_GT(hardware.outside_bytes, 100_MiB) << "a context takes several hundred MiB";
  EXPECT_LT(hardware.outside_bytes, 4_GiB);
  EXPECT_GT(hardware.memory_bytes, hardware.outside_bytes);
}

}  // namespace
}  // namespace snug::machine
