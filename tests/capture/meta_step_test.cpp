// What a step allocates on Meta equals what it allocates on the CPU, event by event.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/models/llama.h"
#include "snug/nn/rms_norm.h"
#include "snug/ops/attention.h"
#include "snug/ops/embedding.h"
#include "snug/ops/gelu.h"
#include "snug/ops/layer_norm.h"
#include "tests/support/allocation_log.h"

namespace snug {
namespace {

using snug::testing::expect_same_allocations;
using torch::autograd::grad;

class MetaStep : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { capture::register_meta_kernels(); }

  capture::GradientSumScope gradient_sums_;
};

at::Tensor input(at::IntArrayRef sizes, at::Device device) {
  return at::ones(sizes, device).set_requires_grad(true);
}

TEST_F(MetaStep, Embedding) {
  expect_same_allocations([](at::Device device) {
    auto weight = input({50, 16}, device), up = at::ones({4, 7, 16}, device);
    auto tokens = at::ones({4, 7}, at::dtype(at::kLong).device(device));
    return [=] {
      grad({at::embedding(weight, tokens)}, {weight}, {up});
      grad({ops::embedding(weight, tokens)}, {weight}, {up});
    };
  });
}

TEST_F(MetaStep, RmsNorm) {
  expect_same_allocations([](at::Device device) {
    nn::RmsNorm norm(16, 1e-5, device);
    auto x = input({4, 7, 16}, device), up = at::ones({4, 7, 16}, device);
    return [=]() mutable { grad({norm(x)}, {x, norm->weight}, {up}); };
  });
}

TEST_F(MetaStep, LayerNormAndGelu) {
  expect_same_allocations([](at::Device device) {
    auto x = input({4, 7, 16}, device), weight = input({16}, device), bias = input({16}, device);
    auto up = at::ones({4, 7, 16}, device);
    return [=] { grad({ops::gelu(ops::layer_norm(x, weight, bias, 1e-5))}, {x, weight, bias}, {up}); };
  });
}

TEST_F(MetaStep, CrossEntropy) {
  expect_same_allocations([](at::Device device) {
    auto logits = input({28, 50}, device);
    auto targets = at::ones({28}, at::dtype(at::kLong).device(device));
    return [=] { grad({at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, -100)}, {logits}); };
  });
}

TEST_F(MetaStep, Linear) {
  expect_same_allocations([](at::Device device) {
    auto x = input({4, 7, 16}, device), weight = input({32, 16}, device), up = at::ones({4, 7, 32}, device);
    return [=] { grad({at::linear(x, weight)}, {x, weight}, {up}); };
  });
}

TEST_F(MetaStep, Silu) {
  expect_same_allocations([](at::Device device) {
    auto x = input({4, 7, 16}, device), up = at::ones({4, 7, 16}, device);
    return [=] { grad({at::silu(x)}, {x}, {up}); };
  });
}

std::function<void()> llama_step(at::Device device, std::int64_t tokens, bool tied, int backwards) {
  models::ModelConfig config{.vocab_size = 61,
                             .hidden_size = 32,
                             .intermediate_size = 80,
                             .num_layers = 2,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 8,
                             .max_positions = 1024,
                             .tied_embeddings = tied};
  models::Llama model(config, device);
  auto batch = at::ones({2, tokens}, at::dtype(at::kLong).device(device));
  return [=]() mutable {
    for (int i = 0; i < backwards; ++i) model->loss_sum(batch, batch).backward();
    for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
  };
}

TEST_F(MetaStep, Llama) {
  for (bool tied : {false, true}) {
    for (std::int64_t tokens : {1, 17, 200, 800}) {
      expect_same_allocations([=](at::Device device) { return llama_step(device, tokens, tied, 1); });
    }
  }
}

TEST_F(MetaStep, LlamaWithAccumulatedGradients) {
  for (bool tied : {false, true}) {
    expect_same_allocations([=](at::Device device) { return llama_step(device, 17, tied, 3); });
  }
}

// Biased linear layers, layer norm, tanh-approximated gelu and dropout, as in GPT-2.
at::Tensor gpt2_block(const at::Tensor& x, const std::vector<at::Tensor>& p) {
  auto h = at::layer_norm(x, {16}, p[0], p[1]);
  auto qkv = at::linear(h, p[2], p[3]).view({2, 9, 3, 2, 8}).permute({2, 0, 3, 1, 4});
  auto mixed = ops::attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).flatten(2);
  auto y = x + at::dropout(at::linear(mixed, p[4], p[5]), 0.1, true);
  auto wide = at::gelu(at::linear(at::layer_norm(y, {16}, p[0], p[1]), p[6], p[7]), "tanh");
  return y + at::dropout(at::linear(wide, p[8], p[9]), 0.1, true);
}

TEST_F(MetaStep, Gpt2Block) {
  expect_same_allocations([](at::Device device) {
    std::vector<at::Tensor> parameters;
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {16}, {16}, {48, 16}, {48}, {16, 16}, {16}, {64, 16}, {64}, {16, 64}, {16}}) {
      parameters.push_back(input(sizes, device));
    }
    auto x = input({2, 9, 16}, device);
    return [=]() mutable {
      gpt2_block(gpt2_block(x, parameters), parameters).sum().backward();
      for (auto& parameter : parameters) parameter.mutable_grad().reset();
      x.mutable_grad().reset();
    };
  });
}

// The case that GradientSumScope exists for: without it Meta allocates a result for the sum of two gradients.
TEST_F(MetaStep, ValueUsedThreeTimes) {
  expect_same_allocations([](at::Device device) {
    auto x = input({64}, device), up = at::ones({64}, device);
    return [=] {
      auto y = x.exp();
      grad({y.sin() + y.cos() + y.tanh()}, {x}, {up});
    };
  });
}

}  // namespace
}  // namespace snug
