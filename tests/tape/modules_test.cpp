// Stock torch::nn modules in training mode, and fused operators: whatever they do inside, the tape changes no
// bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules.h>

#include "snug/ops/embedding.h"
#include "snug/ops/gelu.h"
#include "snug/ops/layer_norm.h"
#include "snug/tape/region.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

namespace nn = torch::nn;

// Forward and backward with random fates, and with all recomputed, against plain autograd.
template <class Module, class Forward>
void compare(Module module, Forward forward) {
  module->train();
  Problem problem{.name = module->name(),
                  .loss = [&] { return region("module", [&] { return forward(module).pow(2).mean(); }); },
                  .parameters = module->parameters(),
                  .buffers = module->buffers()};
  for (const at::Tensor& buffer : problem.buffers) problem.buffers_at_first.push_back(buffer.clone());
  const auto plain = step(problem);
  ASSERT_TRUE(same_bits(plain, step(problem))) << "plain autograd does not repeat itself";
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    Recording recording(seed == 0 ? Fates::recompute() : dice(seed), {.verify = seed % 5 == 0});
    ASSERT_TRUE(same_bits(plain, step(problem))) << problem.name << ", seed " << seed;
    EXPECT_EQ(recording.totals().at("module").differing, 0u) << problem.name << ", seed " << seed;
  }
  EXPECT_EQ(live_values(), 0);
}

class Modules : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(2); }
  at::Tensor sequence = at::randn({6, 3, 16}), image = at::randn({2, 4, 10, 10});
};

TEST_F(Modules, Gru) {
  compare(nn::GRU(nn::GRUOptions(16, 12).num_layers(2).dropout(0.2)),
          [&](auto& module) { return std::get<0>(module->forward(sequence)); });
}

TEST_F(Modules, BidirectionalLstm) {
  compare(nn::LSTM(nn::LSTMOptions(16, 12).num_layers(2).dropout(0.2).bidirectional(true)),
          [&](auto& module) { return std::get<0>(module->forward(sequence)); });
}

TEST_F(Modules, TransformerEncoderLayer) {
  compare(
      nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0.1)),
      [&](auto& module) { return module->forward(sequence); });
}

TEST_F(Modules, MultiheadAttention) {
  compare(nn::MultiheadAttention(nn::MultiheadAttentionOptions(16, 4).dropout(0.1)),
          [&](auto& module) { return std::get<0>(module->forward(sequence, sequence, sequence)); });
}

TEST_F(Modules, EmbeddingThatRenormalises) {
  const at::Tensor words = at::randint(20, {6, 3}, at::kLong);
  nn::Embedding module(nn::EmbeddingOptions(20, 16).max_norm(1.0));
  {
    at::NoGradGuard no_grad;
    module->forward(words);  // it writes its own weight, once
  }
  compare(module, [&](auto& embedding) { return embedding->forward(words); });
}

TEST_F(Modules, ConvolutionsAndTheirNorms) {
  compare(
      nn::Sequential(nn::Conv2d(nn::Conv2dOptions(4, 8, 3).padding(1)), nn::BatchNorm2d(8),
                     nn::ReLU(nn::ReLUOptions(true)), nn::Dropout2d(0.2), nn::ConvTranspose2d(8, 4, 3),
                     nn::GroupNorm(2, 4), nn::LeakyReLU(nn::LeakyReLUOptions().inplace(true)),
                     nn::AvgPool2d(2), nn::PReLU(),
                     nn::InstanceNorm2d(nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
                     nn::RReLU(nn::RReLUOptions().inplace(true)), nn::AlphaDropout(0.1),
                     nn::FeatureAlphaDropout(0.1), nn::AdaptiveMaxPool2d(3)),
      [&](auto& module) { return module->forward(image); });
}

TEST_F(Modules, Activations) {
  compare(
      nn::Sequential(nn::Linear(16, 32), nn::LayerNorm(nn::LayerNormOptions({32})), nn::GELU(),
                     nn::Linear(32, 32), nn::Softplus(), nn::Dropout(nn::DropoutOptions(0.1).inplace(true)),
                     nn::GLU(), nn::ELU(nn::ELUOptions().inplace(true)), nn::Mish(), nn::Softmax(-1),
                     nn::Linear(16, 16), nn::Hardtanh(nn::HardtanhOptions().inplace(true)), nn::Linear(16, 4),
                     nn::LogSoftmax(-1), nn::CELU(), nn::SELU(nn::SELUOptions(true))),
      [&](auto& module) { return module->forward(sequence); });
}

// The parts of a GPT-2 that are operators of snug.
class FusedParts : public nn::Module {
 public:
  at::Tensor forward(const at::Tensor& words) {
    const at::Tensor x = ops::layer_norm(ops::embedding(table, words), scale, shift, 1e-5);
    const at::Tensor y = ops::gelu(at::linear(x, wide), ops::GeluForm::Tanh);
    return ops::gelu(ops::layer_norm(x + at::linear(y, wide.t()), scale, {}, 1e-5));
  }

 private:
  at::Tensor table = register_parameter("table", at::randn({20, 16}));
  at::Tensor scale = register_parameter("scale", at::randn({16}));
  at::Tensor shift = register_parameter("shift", at::randn({16}));
  at::Tensor wide = register_parameter("wide", at::randn({64, 16}));
};

TEST_F(Modules, FusedOperators) {
  const at::Tensor words = at::randint(20, {6, 3}, at::kLong);
  compare(std::make_shared<FusedParts>(), [&](auto& parts) { return parts->forward(words); });
}

}  // namespace
}  // namespace snug::tape
