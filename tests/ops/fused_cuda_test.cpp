// Fused operators on a GPU: at most twice torch's own error against fp64, in every dtype.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>
#include <functional>
#include <string>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/ops/sum_rows.h"
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
       [](const Tensors& in) { return Tensors{plain_layer_norm(in[0], in[1], in[2])}; }},
      {"norm_rope",  // more than all blocks take at a time
       {at::randn({50, 101, 16, 64}, at::kDouble), weight},
       [](const Tensors& in) {
         return Tensors{
             norm_rope(in[0], in[1], make_rope_table(in[0].size(1), 64, 1e4, in[0].options()), 1e-5)};
       },
       [](const Tensors& in) { return plain_rope({plain_rms_norm(in[0], in[1]).transpose(1, 2)}); }}};
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

TEST_F(FusedCuda, SumsOfRowsAreExactAndTheSameEveryTime) {
  struct Shape {
    std::int64_t rows, columns;
  };
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 3}, Shape{8, 256}, Shape{1000, 2304}, Shape{65, 50'257},
                             Shape{16'384, 1024}, Shape{3, 100'000}})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const bool is_apart : {false, true}) {
        const at::Tensor room = at::randn({shape.rows, shape.columns + 5}).to(dtype).cuda();
        const at::Tensor rows =
            is_apart ? room.narrow(1, 1, shape.columns) : room.narrow(1, 0, shape.columns).contiguous();
        const at::Tensor sum = sum_rows(rows, at::kFloat), exact = rows.cpu().to(at::kDouble).sum(0);
        EXPECT_LE((sum.cpu() - exact).abs().max().item<double>(), 1e-4 * std::sqrt(shape.rows))
            << shape.rows << " x " << shape.columns << " of " << dtype;
        EXPECT_TRUE(at::equal(sum, sum_rows(rows, at::kFloat)));
        EXPECT_TRUE(at::equal(sum_rows(rows, dtype), sum.to(dtype))) << "rounded once";
        EXPECT_TRUE(at::equal(sum_rows(rows.contiguous().t().contiguous().t(), at::kFloat),
                              sum_rows(rows.contiguous(), at::kFloat)))
            << "columns first";
      }
}

TEST_F(FusedCuda, NormsTakeTheWidestRowsInFp32) {
  for (const std::int64_t hidden : {16'384, 16'388, 20'480, 32'764, 32'767, 32'768})
    for (const FusedCase& norm : norms_of(hidden)) {
      const Tensors ours = run_fused(norm.fused, norm.inputs,
                                     [](const at::Tensor& tensor) { return tensor.to(at::kFloat).cuda(); });
      const Tensors exact = run_fused(norm.plain, norm.inputs, [](const at::Tensor& tensor) {
        return tensor.to(at::kFloat).to(at::kDouble);
      });
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_LE(relative_error(ours[i], exact[i]), 2e-6) << norm.name << ", result " << i;
    }
}

TEST_F(FusedCuda, ALossOverFewWordsIsExactAndNanIsSeen) {
  expect_few_words_and_nan_are_seen(at::kCUDA);
}

// Padded, with one of its inputs frozen, and asked for its gradients twice.
TEST_F(FusedCuda, ALossOverWordsThatAreNoMultipleMayBePartOfAnotherAndBeRetained) {
  const at::Tensor hidden = at::randn({300, 64}).to(at::kBFloat16).cuda(),
                   weight = at::randn({5003, 64}).to(at::kBFloat16).cuda();
  const at::Tensor targets = at::randint(5003, {300}, at::kLong).cuda();
  const auto plain = [&](const at::Tensor& h, const at::Tensor& w) {
    return plain_loss(h.to(at::kFloat), w.to(at::kFloat), targets);
  };
  for (const bool hidden_learns : {true, false}) {
    const at::Tensor h = hidden.clone().set_requires_grad(hidden_learns),
                     w = weight.clone().set_requires_grad(!hidden_learns);
    const at::Tensor& learns = hidden_learns ? h : w;
    (2 * plain(h, w)).backward();
    const at::Tensor expected = learns.grad().clone();
    const at::Tensor twice = 2 * linear_cross_entropy(h, w, targets);
    for (const bool retains : {true, false}) {
      learns.mutable_grad().reset();
      twice.backward({}, retains);
      EXPECT_LE(relative_error(learns.grad().to(at::kDouble), expected.to(at::kDouble)), 1e-2)
          << "retains " << retains;
    }
    EXPECT_EQ(learns.grad().storage().nbytes(), learns.nbytes()) << "no memory for what is padded";
  }
}

TEST_F(FusedCuda, AHalfLossMayBeScaledInsideOrOutside) {
  expect_gradients_survive_half(at::kCUDA);
}

TEST_F(FusedCuda, ALossTakesBlocksOfMinusInfinity) {
  expect_minus_infinity_is_no_word(at::kCUDA);
}

// More elements than an int counts, on both sides of the first that it does not.
constexpr std::int64_t kHidden = 4096, kManyRows = (std::int64_t{1} << 31) / kHidden + 8, kLastRows = 16;

std::string missing_memory(std::size_t large_tensors) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  auto* allocator = at::getDeviceAllocator(at::kCUDA);
  allocator->emptyCache();
  const std::uint64_t free_bytes = allocator->getMemoryInfo(0).first;
  const std::uint64_t needed = large_tensors * kManyRows * kHidden * sizeof(c10::BFloat16) + 1_GiB;
  if (free_bytes >= needed) return "";
  return concat("NOT ENOUGH MEMORY: ", format_bytes(needed), " are needed, ", format_bytes(free_bytes),
                " free: more than 2^31 elements were not tested");
}

at::Tensor last_rows(const at::Tensor& tensor) {
  return tensor.detach().narrow(0, kManyRows - kLastRows, kLastRows);
}

// The last rows must be as they are alone. The gradients of all others are 0, so that those of what all rows
// share are the same too, but for the order of sums.
void expect_last_rows_as_alone(std::size_t inputs, const Tensors& shared,
                               const std::function<at::Tensor(const Tensors&)>& function) {
  at::manual_seed(13);
  Tensors all, alone;
  for (std::size_t i = 0; i < inputs; ++i) {
    all.push_back(at::randn({kManyRows, kHidden}, at::dtype(at::kBFloat16).device(at::kCUDA)));
    alone.push_back(last_rows(all[i]).clone().requires_grad_());
    all[i].requires_grad_();
  }
  for (auto* leaves : {&all, &alone}) leaves->insert(leaves->end(), shared.begin(), shared.end());
  const at::Tensor out = function(all), out_alone = function(alone);
  EXPECT_TRUE(at::equal(last_rows(out), out_alone.detach()));
  const at::Tensor grad = at::zeros_like(out.detach());
  last_rows(grad).normal_();
  const Tensors grads = torch::autograd::grad({out}, all, {grad});
  const Tensors grads_alone = torch::autograd::grad({out_alone}, alone, {last_rows(grad).clone()});
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (i < inputs)
      EXPECT_TRUE(at::equal(last_rows(grads[i]), grads_alone[i])) << "input " << i;
    else
      EXPECT_TRUE(at::allclose(grads[i], grads_alone[i], 1e-2, 1e-3)) << "input " << i;
  }
}

TEST_F(FusedCuda, MoreElementsThanAnIntCountsInANorm) {
  if (const std::string missing = missing_memory(4); !missing.empty()) GTEST_SKIP() << missing;
  const at::Tensor weight = at::randn({kHidden}, at::dtype(at::kBFloat16).device(at::kCUDA)).requires_grad_();
  expect_last_rows_as_alone(1, {weight}, [](const Tensors& in) { return rms_norm(in[0], in[1], 1e-5); });
}

TEST_F(FusedCuda, MoreElementsThanAnIntCountsInAnElementwiseOperator) {
  if (const std::string missing = missing_memory(6); !missing.empty()) GTEST_SKIP() << missing;
  expect_last_rows_as_alone(2, {}, [](const Tensors& in) { return swiglu(in[0], in[1]); });
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
