#include "snug/ops/attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <string>

#include "snug/base/error.h"
#include "snug/hooks/operators.h"
#include "tests/ops/plain_attention.h"
#include "tests/optim/allocations.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

const AttentionCase kCases[] = {
    {1, 1, 1, 1, 1, 8, true},       {2, 4, 4, 33, 33, 16, true},        {2, 4, 4, 33, 33, 16, false},
    {2, 6, 2, 33, 33, 24, true},    {1, 4, 1, 17, 40, 7, false},        {1, 2, 1, 201, 201, 8, true},
    {1, 2, 2, 130, 600, 8, false},  {1, 2, 1, 770, 770, 16, true},      {2, 4, 2, 33, 33, 16, true, 1},
    {1, 4, 4, 40, 40, 8, true, 7},  {2, 4, 2, 700, 700, 16, true, 100}, {1, 2, 1, 1300, 1300, 8, true, 600},
    {1, 2, 1, 65, 65, 8, true, 64}, {1, 2, 1, 65, 65, 8, true, 65}};

class AttentionTest : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    at::set_num_threads(1);  // at these sizes threads only wait for one another
  }
};

TEST_P(AttentionTest, EqualsPlainSoftmaxInDoublePrecision) {
  auto shape = GetParam();
  auto in = random_inputs(shape);
  auto results = run(in, [&](auto& q, auto& k, auto& v) {
    return attention(q, k, v, {.causal = shape.causal, .window = shape.window});
  });
  auto exact = run(in, [&](auto& q, auto& k, auto& v) { return plain_attention(q, k, v, shape); });
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].sizes(), exact[i].sizes());
    EXPECT_LT(error(results[i], exact[i]), 1e-10) << "result " << i;
  }
}

// The reference, block by block and all at once: with 512 keys at a time some of these take several blocks.
TEST_P(AttentionTest, PlainOperatorsAreTheSame) {
  const auto shape = GetParam();
  const auto in = random_inputs(shape);
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const auto inputs = in.to(dtype);
    const auto exact = run(inputs.to(at::kDouble),
                           [&](auto& q, auto& k, auto& v) { return plain_attention(q, k, v, shape); });
    const auto kernels = run(inputs, [&](auto& q, auto& k, auto& v) {
      return attention(q, k, v, {.causal = shape.causal, .window = shape.window});
    });
    for (const auto backend : {AttentionBackend::Blockwise, AttentionBackend::Quadratic}) {
      const auto results = run(inputs, [&](auto& q, auto& k, auto& v) {
        return attention(q, k, v, {.causal = shape.causal, .window = shape.window, .backend = backend});
      });
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(results[i].transpose(1, 2).is_contiguous()) << "result " << i;
        EXPECT_LE(error(results[i], exact[i]),
                  std::max(2 * error(kernels[i], exact[i]), dtype == at::kDouble ? 1e-10 : 1e-6))
            << "result " << i;
      }
    }
  }
}

TEST_P(AttentionTest, IsAsExactAsTorchInLowerPrecision) {
  auto shape = GetParam();
  auto in = random_inputs(shape);
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    auto rounded = in.to(dtype);
    auto exact = run(rounded.to(at::kDouble),
                     [&](auto& q, auto& k, auto& v) { return plain_attention(q, k, v, shape); });
    auto results = run(rounded, [&](auto& q, auto& k, auto& v) {
      return attention(q, k, v, {.causal = shape.causal, .window = shape.window});
    });
    // Torch's kernel with a mask where there is a window, as it is for a causal one alone.
    const auto mask = shape.window > 0 ? visible(shape) : std::nullopt;
    auto torchs = run(rounded, [&](auto& q, auto& k, auto& v) {
      return at::scaled_dot_product_attention(q, k, v, mask, 0.0, shape.causal && !mask, {},
                                              /*enable_gqa=*/true);
    });
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_LE(error(results[i], exact[i]), 2 * error(torchs[i], exact[i])) << dtype << ", result " << i;
      EXPECT_LT(error(results[i], exact[i]), (dtype == at::kFloat ? 1e-4 : 0.2)) << dtype << ", result " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, ::testing::ValuesIn(kCases));

TEST(Attention, GradientsAreTheSlopes) {
  at::manual_seed(7);
  auto in = random_inputs({1, 2, 1, 3, 3, 4, true});
  auto grads = run(in, [](auto& q, auto& k, auto& v) { return attention(q, k, v); });
  auto loss = [&] { return (attention(in.query, in.key, in.value) * in.grad).sum().item<double>(); };
  constexpr double kStep = 1e-5;
  std::size_t argument = 1;
  for (auto* tensor : {&in.query, &in.key, &in.value}) {
    auto entries = tensor->flatten().clone();
    for (std::int64_t i = 0; i < entries.numel(); ++i) {
      auto moved = [&](double by) {
        auto changed = entries.clone();
        changed[i] += by;
        tensor->copy_(changed.view_as(*tensor));
        return loss();
      };
      double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      EXPECT_NEAR(slope, grads[argument].flatten()[i].item<double>(), 1e-8)
          << "argument " << argument << ", entry " << i;
    }
    tensor->copy_(entries.view_as(*tensor));
    ++argument;
  }
}

TEST(Attention, MemoryOfTheReferenceGrowsWithTokens) {
  const auto peak = [](std::int64_t tokens, AttentionBackend backend) {
    const auto in = random_inputs({1, 1, 1, tokens, tokens, 8, true}).to(at::kFloat);
    testing::Allocations allocations;
    run(in, [&](auto& q, auto& k, auto& v) { return attention(q, k, v, {.backend = backend}); });
    return static_cast<double>(allocations.peak_bytes());
  };
  EXPECT_LT(peak(4096, AttentionBackend::Blockwise), 2.2 * peak(2048, AttentionBackend::Blockwise));
  EXPECT_LT(peak(4096, AttentionBackend::Default), 2.2 * peak(2048, AttentionBackend::Default));
  EXPECT_GT(peak(4096, AttentionBackend::Quadratic), 3.5 * peak(2048, AttentionBackend::Quadratic));
}

TEST(Attention, SaysWhereAKernelIsMissing) {
  EXPECT_EQ(missing_attention_kernel(at::kCUDA, at::kBFloat16, 128), "");
  EXPECT_EQ(missing_attention_kernel(at::kCUDA, at::kFloat, 512), "");
  EXPECT_EQ(missing_attention_kernel(at::kCPU, at::kDouble, 7), "");
  EXPECT_EQ(missing_attention_kernel(at::kCUDA, at::kBFloat16, 100),
            "attention on CUDA in BFloat16 has no kernel for heads of 100: a multiple of 8 is expected, at "
            "most 256");
  EXPECT_NE(missing_attention_kernel(at::kCUDA, at::kDouble, 64), "");
  EXPECT_NE(missing_attention_kernel(at::kCPU, at::kLong, 64), "");
}

// Every key far back is another number of queries' own: what lies outside of the window must not matter.
TEST(Attention, AWindowHidesWhatIsOlder) {
  at::manual_seed(7);
  const AttentionCase shape{1, 2, 1, 300, 300, 8, true, 70};
  const auto in = random_inputs(shape);
  const at::Tensor out = attention(in.query, in.key, in.value, {.window = shape.window});
  const at::Tensor key = in.key.clone(), value = in.value.clone();
  key.narrow(2, 0, 200).fill_(100);
  value.narrow(2, 0, 200).fill_(-100);
  const at::Tensor other = attention(in.query, key, value, {.window = shape.window});
  EXPECT_TRUE(at::equal(out.narrow(2, 269, 31), other.narrow(2, 269, 31)));  // sees 200 and later
  EXPECT_FALSE(at::equal(out.narrow(2, 268, 1), other.narrow(2, 268, 1)));   // sees 199
}

TEST(Attention, AWindowAsLongAsTheSequenceIsNone) {
  const auto in = random_inputs({1, 2, 1, 300, 300, 8, true});
  EXPECT_TRUE(at::equal(attention(in.query, in.key, in.value, {.window = 300}),
                        attention(in.query, in.key, in.value)));
}

TEST(Attention, MemoryOfAWindowGrowsWithTokens) {
  const auto peak = [](std::int64_t tokens) {
    const auto in = random_inputs({1, 1, 1, tokens, tokens, 8, true}).to(at::kFloat);
    testing::Allocations allocations;
    run(in, [&](auto& q, auto& k, auto& v) { return attention(q, k, v, {.window = 100}); });
    return static_cast<double>(allocations.peak_bytes());
  };
  EXPECT_LT(peak(4096), 2.2 * peak(2048));
}

TEST(Attention, ScaleCanBeChosen) {
  auto in = random_inputs({1, 2, 2, 5, 5, 4, true});
  auto by_scale = attention(in.query, in.key, in.value, {.causal = true, .scale = 1.0});
  auto by_size = attention(in.query * 2, in.key, in.value);  // 2 / sqrt(4) = 1
  EXPECT_LT(error(by_scale, by_size), 1e-12);
}

struct Names : hooks::OperatorListener {
  void on_operator(hooks::OperatorCall& call) override {
    names.push_back(call.op.schema().name());
    call.proceed();
  }
  std::vector<std::string> names;
};

TEST(Attention, IsOneOperatorInEachDirection) {
  auto in = random_inputs({1, 2, 1, 5, 5, 8, true});
  auto query = in.query.requires_grad_();
  Names seen;
  hooks::OperatorListenerGuard guard(seen);
  auto out = attention(query, in.key, in.value);
  EXPECT_EQ(seen.names, std::vector<std::string>{"snug::attention"});
  seen.names.clear();
  torch::autograd::grad({out}, {query}, {in.grad});
  EXPECT_EQ(seen.names, std::vector<std::string>{"snug::attention_backward"});
}

TEST(Attention, SecondDerivativeIsRefused) {
  auto in = random_inputs({1, 2, 1, 5, 5, 8, true});
  auto query = in.query.requires_grad_();
  auto first = torch::autograd::grad({attention(query, in.key, in.value).sum()}, {query}, {}, {},
                                     /*create_graph=*/true);
  EXPECT_THROW(torch::autograd::grad({first[0].sum()}, {query}), std::exception);
}

void expect_error(const std::string& part, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no error, expected one about: " << part;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Attention, SaysWhatIsWrongWithItsInputs) {
  auto t = [](at::IntArrayRef sizes) { return at::ones(sizes); };
  auto q = t({1, 4, 5, 8});
  expect_error("4 dimensions", [&] { attention(t({4, 5, 8}), q, q); });
  expect_error("same sizes", [&] { attention(q, q, t({1, 4, 6, 8})); });
  expect_error("batch and head_dim", [&] { attention(q, t({1, 4, 5, 16}), t({1, 4, 5, 16})); });
  expect_error("empty input", [&] { attention(t({0, 4, 5, 8}), t({0, 4, 5, 8}), t({0, 4, 5, 8})); });
  expect_error("must divide", [&] { attention(q, t({1, 3, 5, 8}), t({1, 3, 5, 8})); });
  expect_error("as many query tokens as key tokens", [&] { attention(q, t({1, 4, 6, 8}), t({1, 4, 6, 8})); });
  expect_error("one dtype", [&] { attention(q, q.to(at::kDouble), q); });
  expect_error("`window` must be 0 or more", [&] { attention(q, q, q, {.window = -1}); });
  expect_error("is of causal attention", [&] { attention(q, q, q, {.causal = false, .window = 2}); });
  expect_error("must be contiguous", [&] { attention(t({1, 4, 8, 5}).transpose(2, 3), q, q); });
}

}  // namespace
}  // namespace snug::ops
