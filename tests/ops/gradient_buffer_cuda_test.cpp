#include <torch/cuda.h>

#include "tests/ops/gradient_buffer_cases.h"

namespace snug::ops {
namespace {

TEST(GradientBufferCuda, AddsInPlace) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: sums inside products were not tested";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    testing::expect_it_adds_in_place(dtype, {}, c10::kCUDA);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    testing::expect_it_adds_in_place(dtype, at::kFloat, c10::kCUDA);
}

}  // namespace
}  // namespace snug::ops
