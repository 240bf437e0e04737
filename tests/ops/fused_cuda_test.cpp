// Fused operators on a GPU: at most twice torch's own error against fp64, in every dtype.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "snug/base/error.h"
#include "tests/ops/fused_cases.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

class FusedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: fused operators on CUDA were not tested";
  }
};

TEST_F(FusedCuda, AreAsExactAsTorch) {
  expect_as_exact_as_torch([](const at::Tensor& tensor) { return tensor.cuda(); });
}

TEST_F(FusedCuda, AreSoWhenNothingIsAligned) {
  expect_as_exact_as_torch([](const at::Tensor& tensor) {
    at::Tensor room = at::empty({tensor.numel() + 1}, tensor.options().device(at::kCUDA));
    return room.narrow(0, 1, tensor.numel()).view(tensor.sizes()).copy_(tensor);
  });
}

TEST_F(FusedCuda, GiveTheSameBitsEveryTime) {
  for (const FusedCase& fused : fused_cases()) {
    const auto half = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16).cuda(); };
    const Tensors once = run_fused(fused.fused, fused.inputs, half);
    const Tensors twice = run_fused(fused.fused, fused.inputs, half);
    for (std::size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(at::equal(once[i], twice[i])) << fused.name << ", result " << i;
  }
}

TEST_F(FusedCuda, ManyRows) {
  const at::Tensor x = at::randn({5000, 64}, at::kDouble), weight = at::randn({64}, at::kDouble);
  const FusedCase norms[] = {
      {"rms_norm",
       {x, weight},
       [](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
       [](const Tensors& in) { return Tensors{plain_rms_norm(in[0], in[1])}; }},
      {"layer_norm",
       {x, weight, weight},
       [](const Tensors& in) { return Tensors{layer_norm(in[0], in[1], in[2], 1e-5)}; },
       [](const Tensors& in) { return Tensors{plain_layer_norm(in[0], in[1], in[2])}; }}};
  for (const FusedCase& norm : norms) {
    const Tensors ours = run_fused(norm.fused, norm.inputs,
                                   [](const at::Tensor& tensor) { return tensor.to(at::kFloat).cuda(); });
    const Tensors exact = run_fused(norm.plain, norm.inputs, [](const at::Tensor& tensor) {
      return tensor.to(at::kFloat).to(at::kDouble);
    });
    for (std::size_t i = 0; i < ours.size(); ++i)
      EXPECT_LE(relative_error(ours[i], exact[i]), 1e-6) << norm.name << ", result " << i;
  }
}

TEST_F(FusedCuda, RefuseWhatTheyHaveNoKernelFor) {
  const auto options = at::TensorOptions(at::kCUDA);
  EXPECT_THROW(
      rms_norm(at::ones({2, 8}, options.dtype(at::kDouble)), at::ones({8}, options.dtype(at::kDouble)), 1e-5),
      Error);
  EXPECT_THROW(swiglu(at::ones({8}, options.dtype(at::kDouble)), at::ones({8}, options.dtype(at::kDouble))),
               Error);
  EXPECT_THROW(rms_norm(at::ones({1, 32769}, options), at::ones({32769}, options), 1e-5), Error);
  EXPECT_THROW(rms_norm(at::ones({1, 8}, options), at::ones({8}), 1e-5), Error);
  EXPECT_THROW(layer_norm(at::ones({1, 32769}, options), at::ones({32769}, options), {}, 1e-5), Error);
  EXPECT_THROW(layer_norm(at::ones({1, 8}, options), at::ones({8}, options), at::ones({8}), 1e-5), Error);
  EXPECT_THROW(ops::gelu(at::ones({8}, options.dtype(at::kDouble))), Error);
  EXPECT_THROW(ops::embedding(at::ones({8, 4}, options), at::zeros({2}, at::kLong)), Error);
}

}  // namespace
}  // namespace snug::ops
