// Attention on a GPU, against the textbook in fp64 on the CPU.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include "snug/base/error.h"
#include "snug/ops/attention.h"
#include "snug/ops/kernel_image.h"
#include "tests/ops/plain_attention.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

class AttentionCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: attention on CUDA was not tested";
    at::manual_seed(7);
  }
};

AttentionInputs on_gpu(const AttentionInputs& in) {
  return {in.query.cuda(), in.key.cuda(), in.value.cuda(), in.grad.cuda()};
}

// In fp32 with grouped heads torch takes the quadratic path, whose matrix products round less than any
// blockwise kernel.
constexpr double kRounding = 4e-6;

std::vector<AttentionBackend> backends(at::ScalarType dtype, const AttentionCase& shape) {
  if (dtype == at::kFloat) return {AttentionBackend::Default, AttentionBackend::Efficient};
  if (shape.head_dim < 64 || shape.window > 0) return {AttentionBackend::Default, AttentionBackend::Flash};
  return {AttentionBackend::Default, AttentionBackend::Flash, AttentionBackend::CuDnn};
}

TEST_F(AttentionCuda, IsAsExactAsTorch) {
  for (AttentionCase shape :
       {AttentionCase{2, 4, 4, 33, 33, 16, true}, AttentionCase{2, 4, 4, 40, 70, 64, false},
        AttentionCase{1, 8, 2, 257, 257, 64, true}, AttentionCase{1, 4, 1, 130, 130, 128, true},
        AttentionCase{2, 8, 2, 257, 257, 64, true, 64}, AttentionCase{1, 4, 4, 700, 700, 128, true, 1},
        AttentionCase{1, 4, 1, 640, 640, 128, true, 200}}) {
    for (auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      auto rounded = random_inputs(shape).to(dtype);
      auto exact = run(rounded.to(at::kDouble),
                       [&](auto& q, auto& k, auto& v) { return plain_attention(q, k, v, shape); });
      const auto mask = shape.window > 0 ? visible(shape, at::kCUDA) : std::nullopt;
      auto torchs = run(on_gpu(rounded), [&](auto& q, auto& k, auto& v) {
        return at::scaled_dot_product_attention(q, k, v, mask, 0.0, shape.causal && !mask, {},
                                                /*enable_gqa=*/true);
      });
      for (const auto backend : backends(dtype, shape)) {
        auto results = run(on_gpu(rounded), [&](auto& q, auto& k, auto& v) {
          at::Tensor out =
              attention(q, k, v, {.causal = shape.causal, .window = shape.window, .backend = backend});
          EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
          return out;
        });
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].sizes(), exact[i].sizes());
          EXPECT_LE(error(results[i].cpu(), exact[i]), 2 * error(torchs[i].cpu(), exact[i]) + kRounding)
              << dtype << ", " << shape.tokens << " tokens, backend " << static_cast<int>(backend)
              << ", result " << i;
        }
      }
    }
  }
}

// Queries, keys and values that are parts of one matrix are read where they lie.
TEST_F(AttentionCuda, TakesPartsOfOneMatrix) {
  for (const std::int64_t head_dim : {64, 128}) {
    const at::Tensor packed = at::randn({2, 300, 3, 4, head_dim}, at::dtype(at::kBFloat16).device(at::kCUDA));
    const auto part = [](const at::Tensor& of, std::int64_t which) {
      return of.select(2, which).transpose(1, 2);
    };
    AttentionInputs apart{part(packed, 0).clone(), part(packed, 1).clone(), part(packed, 2).clone(),
                          at::randn({2, 4, 300, head_dim}, packed.options())};
    const auto causal = [](const auto& q, const auto& k, const auto& v) {
      return attention(q, k, v, {.causal = true});
    };
    const auto expected = run(apart, causal);
    const at::Tensor leaf = packed.clone().requires_grad_();
    const at::Tensor out = causal(part(leaf, 0), part(leaf, 1), part(leaf, 2));
    out.backward(apart.grad);
    EXPECT_TRUE(out.transpose(1, 2).is_contiguous());
    EXPECT_TRUE(at::equal(out, expected[0]));
    for (std::int64_t which = 0; which < 3; ++which)
      EXPECT_LE(error(part(leaf.grad(), which), expected[1 + which]), 2e-2) << "gradient " << which;
  }
}

// Head sizes and types without a kernel among them; more than 512 keys take two blocks.
TEST_F(AttentionCuda, PlainOperatorsAreAsExactAsOnTheCpu) {
  for (AttentionCase shape :
       {AttentionCase{1, 1, 1, 1, 1, 8, true}, AttentionCase{1, 4, 2, 700, 700, 12, true},
        AttentionCase{2, 4, 4, 33, 33, 64, true}, AttentionCase{2, 6, 2, 130, 600, 100, false},
        AttentionCase{1, 4, 2, 1200, 1200, 12, true, 130}}) {
    const auto in = random_inputs(shape);
    for (auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
      const auto rounded = in.to(dtype);
      const auto exact = run(rounded.to(at::kDouble),
                             [&](auto& q, auto& k, auto& v) { return plain_attention(q, k, v, shape); });
      for (const auto backend : {AttentionBackend::Blockwise, AttentionBackend::Quadratic}) {
        const auto function = [&](auto& q, auto& k, auto& v) {
          return attention(q, k, v, {.causal = shape.causal, .window = shape.window, .backend = backend});
        };
        const auto on_cpu = run(rounded, function), results = run(on_gpu(rounded), function);
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_TRUE(results[i].is_cuda() && results[i].transpose(1, 2).is_contiguous()) << "result " << i;
          EXPECT_EQ(results[i].scalar_type(), dtype);
          EXPECT_LE(error(results[i].cpu(), exact[i]),
                    2 * error(on_cpu[i], exact[i]) + (dtype == at::kDouble ? 1e-12 : kRounding))
              << dtype << ", heads of " << shape.head_dim << ", backend " << static_cast<int>(backend)
              << ", result " << i;
        }
      }
    }
  }
}

TEST_F(AttentionCuda, ASingleTokenLooksAtItself) {
  const auto x = at::randn({2, 4, 1, 64}, at::dtype(at::kBFloat16).device(at::kCUDA));
  EXPECT_TRUE(at::allclose(attention(x, x, x), x));
}

TEST_F(AttentionCuda, RefusesAHeadSizeItHasNoKernelFor) {
  auto x = at::ones({1, 2, 5, 12}, at::dtype(at::kBFloat16).device(at::kCUDA));
  EXPECT_THROW(attention(x, x, x), Error);
}

TEST_F(AttentionCuda, CodeForThisGpuIsThere) {
  EXPECT_EQ(missing_kernel_image(0), "");
}

}  // namespace
}  // namespace snug::ops
