#include "snug/models/llama.h"

#include <ATen/ops/linear.h>

#include <string>
#include <utility>

#include "snug/base/error.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/ops/rope.h"

namespace snug::models {
namespace {

constexpr std::int64_t kIgnoredTarget = -100;

}  // namespace

LlamaImpl::LlamaImpl(const LlamaConfig& config, const at::TensorOptions& options,
                     ops::AttentionBackend attention)
    : config_(config) {
  auto model = register_module("model", std::make_shared<torch::nn::Module>("model"));
  embed_tokens_ =
      model->register_module("embed_tokens", nn::Embedding(config.vocab_size, config.hidden_size, options));

  auto layers = model->register_module("layers", std::make_shared<torch::nn::Module>("layers"));
  nn::AttentionShape shape{config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
                           attention};
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    nn::Block block(shape, config.intermediate_size, config.norm_eps, options);
    layers_.push_back(layers->register_module(std::to_string(i), std::move(block)));
  }

  norm_ = model->register_module("norm", nn::RmsNorm(config.hidden_size, config.norm_eps, options));
  if (!config.tied_embeddings) {
    lm_head_ = register_module("lm_head", nn::Projection(config.hidden_size, config.vocab_size, options));
  }

  nn::bind_to_region("embed", *embed_tokens_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    nn::bind_to_region("layers." + std::to_string(i), *layers_[i]);
  }
  nn::bind_to_region("head", *norm_);
  if (lm_head_) nn::bind_to_region("head", *lm_head_);

  at::NoGradGuard no_grad;
  for (auto& parameter : parameters()) {
    if (parameter.dim() > 1) parameter.normal_(0.0, config.initializer_range);
  }
}

at::Tensor LlamaImpl::run(const at::Tensor& tokens, nn::Stack::Part head) {
  check(tokens.dim() == 2, "llama: expected tokens [batch, tokens], got ", tokens.sizes());
  check(tokens.size(1) <= config_.max_positions, "llama: ", tokens.size(1),
        " tokens in a row, the model has ", config_.max_positions, " positions");
  auto table = ops::make_rope_table(tokens.size(1), config_.head_dim, config_.rope_theta,
                                    embed_tokens_->weight.options());
  nn::Stack stack{.embed = [this](const at::Tensor& x) { return embed_tokens_(x); },
                  .blocks = {},
                  .head = std::move(head)};
  for (auto& layer : layers_) {
    stack.blocks.emplace_back([&layer, &table](const at::Tensor& x) { return layer(x, table); });
  }
  return stack.run(tokens);
}

at::Tensor LlamaImpl::project_to_vocabulary(const at::Tensor& hidden) {
  return at::linear(norm_(hidden), head_weight());
}

const at::Tensor& LlamaImpl::head_weight() const {
  return config_.tied_embeddings ? embed_tokens_->weight : lm_head_->weight;
}

at::Tensor LlamaImpl::logits(const at::Tensor& tokens) {
  return run(tokens, [this](const at::Tensor& hidden) { return project_to_vocabulary(hidden); });
}

at::Tensor LlamaImpl::loss_sum(const at::Tensor& tokens, const at::Tensor& targets, double scale,
                               std::int64_t head_chunks) {
  check(targets.sizes() == tokens.sizes(), "llama: targets must have the sizes of tokens ", tokens.sizes(),
        ", got ", targets.sizes());
  check(head_chunks >= 0, "llama: head_chunks must not be negative, got ", head_chunks);
  const std::int64_t rows = head_chunks > 0 ? (tokens.numel() - 1) / head_chunks + 1 : 0;
  return run(tokens, [&](const at::Tensor& hidden) {
    return ops::linear_cross_entropy(
        norm_(hidden), head_weight(), targets,
        {.scale = scale, .ignore_index = kIgnoredTarget, .rows_at_a_time = rows});
  });
}

}  // namespace snug::models
