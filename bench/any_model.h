// Models as people write them, out of torch's own operators: what a Session meets in other people's loops.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <string>
#include <vector>

#include "snug/tape/region.h"

namespace snug::bench {

namespace nn = torch::nn;

class AnyModel : public nn::Module {
 public:
  virtual at::Tensor batch(std::int64_t rows, std::int64_t length) = 0;
  virtual at::Tensor loss(const at::Tensor& batch) = 0;
};

struct Attention : nn::Module {
  Attention(std::int64_t width, std::int64_t heads, bool causal)
      : heads(heads),
        causal(causal),
        qkv(nn::LinearOptions(width, 3 * width).bias(false)),
        out(width, width) {
    register_module("qkv", qkv);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto sizes = x.sizes();
    const auto parts = qkv(x).view({sizes[0], sizes[1], 3, heads, sizes[2] / heads}).permute({2, 0, 3, 1, 4});
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, causal);
    return out(y.transpose(1, 2).reshape(sizes));
  }
  std::int64_t heads;
  bool causal;
  nn::Linear qkv, out;
};

// A Llama of torch's operators: norm, attention, a gated product; embedding and head in no region.
struct Llama final : AnyModel {
  static constexpr std::int64_t kWidth = 1024, kLayers = 12, kVocabulary = 32000;
  struct Block : nn::Module {
    Block()
        : attention(kWidth, 8, true),
          gate(no_bias()),
          up(no_bias()),
          down(nn::LinearOptions(2816, kWidth).bias(false)) {
      norms[0] = register_parameter("norm1", at::ones({kWidth}));
      norms[1] = register_parameter("norm2", at::ones({kWidth}));
      register_module("attention", std::shared_ptr<nn::Module>(&attention, [](nn::Module*) {}));
      register_module("gate", gate);
      register_module("up", up);
      register_module("down", down);
    }
    static nn::LinearOptions no_bias() { return nn::LinearOptions(kWidth, 2816).bias(false); }
    at::Tensor forward(at::Tensor x) {
      x = x + attention.forward(at::rms_norm(x, {kWidth}, norms[0], 1e-5));
      const at::Tensor h = at::rms_norm(x, {kWidth}, norms[1], 1e-5);
      return x + down(at::silu(gate(h)) * up(h));
    }
    Attention attention;
    nn::Linear gate, up, down;
    at::Tensor norms[2];
  };
  Llama() : embedding(kVocabulary, kWidth), head(nn::LinearOptions(kWidth, kVocabulary).bias(false)) {
    register_module("embedding", embedding);
    register_module("head", head);
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
  }
  at::Tensor batch(std::int64_t rows, std::int64_t length) override {
    return at::randint(kVocabulary, {rows, length + 1},
                       at::TensorOptions(head->weight.device()).dtype(at::kLong));
  }
  at::Tensor loss(const at::Tensor& batch) override {
    at::Tensor x = embedding(batch.slice(1, 0, -1));
    for (std::size_t i = 0; i < blocks.size(); ++i)
      x = region("block" + std::to_string(i), [&] { return blocks[i]->forward(x); });
    return at::cross_entropy_loss(head(x).flatten(0, 1).to(at::kFloat), batch.slice(1, 1).reshape(-1));
  }
  nn::Embedding embedding;
  nn::Linear head;
  std::vector<std::shared_ptr<Block>> blocks;
};

// GPT-2 with dropout, or a ViT over patches without it.
struct Transformer final : AnyModel {
  static constexpr std::int64_t kWidth = 768, kLayers = 12, kVocabulary = 50304, kPatch = 768,
                                kClasses = 1000;
  struct Block : nn::Module {
    explicit Block(double dropout, bool causal)
        : attention(kWidth, 12, causal),
          up(kWidth, 4 * kWidth),
          down(4 * kWidth, kWidth),
          norm1(nn::LayerNormOptions({kWidth})),
          norm2(nn::LayerNormOptions({kWidth})),
          drop(dropout) {
      register_module("attention", std::shared_ptr<nn::Module>(&attention, [](nn::Module*) {}));
      register_module("up", up);
      register_module("down", down);
      register_module("norm1", norm1);
      register_module("norm2", norm2);
      register_module("drop", drop);
    }
    at::Tensor forward(at::Tensor x) {
      x = x + drop(attention.forward(norm1(x)));
      return x + drop(down(at::gelu(up(norm2(x)))));
    }
    Attention attention;
    nn::Linear up, down;
    nn::LayerNorm norm1, norm2;
    nn::Dropout drop;
  };
  explicit Transformer(bool is_gpt2)
      : is_gpt2(is_gpt2),
        tokens(is_gpt2 ? kVocabulary : 1, kWidth),
        patches(kPatch, kWidth),
        head(kWidth, is_gpt2 ? kVocabulary : kClasses) {
    if (is_gpt2) register_module("tokens", tokens);
    if (!is_gpt2) register_module("patches", patches);
    register_module("head", head);
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i),
                                       std::make_shared<Block>(is_gpt2 ? 0.1 : 0.0, is_gpt2)));
  }
  at::Tensor batch(std::int64_t rows, std::int64_t length) override {
    const auto on = at::TensorOptions(head->weight.device());
    return is_gpt2 ? at::randint(kVocabulary, {rows, length + 1}, on.dtype(at::kLong))
                   : at::randn({rows, length, kPatch}, on.dtype(head->weight.scalar_type()));
  }
  at::Tensor loss(const at::Tensor& batch) override {
    at::Tensor x = is_gpt2 ? tokens(batch.slice(1, 0, -1)) : patches(batch);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      x = region("block" + std::to_string(i), [&] { return blocks[i]->forward(x); });
    if (!is_gpt2) return at::log_softmax(head(x.mean(1)).to(at::kFloat), -1).select(1, 7).mean().neg();
    return at::cross_entropy_loss(head(x).flatten(0, 1).to(at::kFloat), batch.slice(1, 1).reshape(-1));
  }
  const bool is_gpt2;
  nn::Embedding tokens;
  nn::Linear patches, head;
  std::vector<std::shared_ptr<Block>> blocks;
};

// Residual convolutions with batch norm.
struct ConvNet final : AnyModel {
  static constexpr std::int64_t kWidth = 128, kLayers = 16;
  struct Block : nn::Module {
    Block() : first(conv(kWidth)), second(conv(kWidth)), norm1(kWidth), norm2(kWidth) {
      register_module("first", first);
      register_module("second", second);
      register_module("norm1", norm1);
      register_module("norm2", norm2);
    }
    static nn::Conv2dOptions conv(std::int64_t width) {
      return nn::Conv2dOptions(width, width, 3).padding(1).bias(false);
    }
    at::Tensor forward(const at::Tensor& x) { return at::relu(x + norm2(second(at::relu(norm1(first(x)))))); }
    nn::Conv2d first, second;
    nn::BatchNorm2d norm1, norm2;
  };
  ConvNet() : stem(nn::Conv2dOptions(3, kWidth, 7).stride(2).padding(3)), head(kWidth, 1000) {
    register_module("stem", stem);
    register_module("head", head);
    for (std::int64_t i = 0; i < kLayers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
  }
  at::Tensor batch(std::int64_t rows, std::int64_t length) override {
    return at::randn({rows, 3, length, length}, at::TensorOptions(head->weight.device()));
  }
  at::Tensor loss(const at::Tensor& batch) override {
    at::Tensor x = stem(batch);
    for (std::size_t i = 0; i < blocks.size(); ++i)
      x = region("block" + std::to_string(i), [&] { return blocks[i]->forward(x); });
    return at::log_softmax(head(x.mean({2, 3})), -1).select(1, 7).mean().neg();
  }
  nn::Conv2d stem;
  nn::Linear head;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace snug::bench
