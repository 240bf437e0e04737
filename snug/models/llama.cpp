#include "snug/models/llama.h"

#include <string>
#include <utility>

#include "snug/ops/rope.h"

namespace snug::models {
namespace {

nn::AttentionShape attention_shape(const ModelConfig& config, std::int64_t layer,
                                   ops::AttentionBackend backend) {
  nn::AttentionShape shape{config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
                           backend};
  shape.window = config.window_of(layer);
  shape.qkv_bias = config.family == Family::Qwen2;
  if (config.family == Family::Qwen3) shape.qk_norm_eps = config.norm_eps;
  return shape;
}

}  // namespace

LlamaImpl::LlamaImpl(const ModelConfig& config, const ModelOptions& options) : LanguageModel(config) {
  const at::TensorOptions& tensors = options.tensors;
  auto model = register_module("model", std::make_shared<torch::nn::Module>("model"));
  embed_tokens_ =
      model->register_module("embed_tokens", nn::Embedding(config.vocab_size, config.hidden_size, tensors));
  made("embed", *embed_tokens_, options);

  auto layers = model->register_module("layers", std::make_shared<torch::nn::Module>("layers"));
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    nn::Block block(attention_shape(config, i, options.attention), config.intermediate_size, config.norm_eps,
                    tensors);
    layers_.push_back(layers->register_module(std::to_string(i), std::move(block)));
    made("layers." + std::to_string(i), *layers_.back(), options);
  }

  norm_ = model->register_module("norm", nn::RmsNorm(config.hidden_size, config.norm_eps, tensors));
  made("head", *norm_, options);
  if (!config.tied_embeddings) {
    lm_head_ = register_module("lm_head", nn::Projection(config.hidden_size, config.vocab_size, tensors));
    made("head", *lm_head_, options);
  }
  if (options.fresh) start_fresh(options);
}

nn::Stack LlamaImpl::body(std::int64_t tokens) {
  auto table = ops::make_rope_table(tokens, config().head_dim, config().rope_theta,
                                    embed_tokens_->weight.options(), config().rope_scaling);
  nn::Stack stack{
      .embed = [this](const at::Tensor& x) { return embed_tokens_(x); }, .blocks = {}, .head = {}};
  for (auto& layer : layers_) {
    stack.blocks.emplace_back([&layer, table](const at::Tensor& x) { return layer(x, table); });
  }
  return stack;
}

const at::Tensor& LlamaImpl::head_weight() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

}  // namespace snug::models
