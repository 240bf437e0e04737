#include "snug/models/gpt2.h"

#include <cmath>
#include <string>
#include <utility>

namespace snug::models {

Gpt2Impl::Gpt2Impl(const ModelConfig& config, const ModelOptions& options) : LanguageModel(config) {
  const at::TensorOptions& tensors = options.tensors;
  auto transformer = register_module("transformer", std::make_shared<torch::nn::Module>("transformer"));
  wte_ = transformer->register_module("wte", nn::Embedding(config.vocab_size, config.hidden_size, tensors));
  wpe_ =
      transformer->register_module("wpe", nn::Embedding(config.max_positions, config.hidden_size, tensors));

  auto blocks = transformer->register_module("h", std::make_shared<torch::nn::Module>("h"));
  const nn::Gpt2BlockShape shape{config.hidden_size, config.intermediate_size, config.num_heads,
                                 config.norm_eps, options.attention};
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    blocks_.push_back(blocks->register_module(std::to_string(i), nn::Gpt2Block(shape, tensors)));
  }
  ln_f_ = transformer->register_module("ln_f", nn::LayerNorm(config.hidden_size, config.norm_eps, tensors));
  if (!config.tied_embeddings) {
    lm_head_ = register_module("lm_head", nn::Projection(config.hidden_size, config.vocab_size, tensors));
  }

  nn::bind_to_region("embed", *wte_);
  nn::bind_to_region("embed", *wpe_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    nn::bind_to_region("layers." + std::to_string(i), *blocks_[i]);
  }
  nn::bind_to_region("head", *ln_f_);
  if (lm_head_) nn::bind_to_region("head", *lm_head_);
  if (options.fresh) {
    start_fresh();
    scale_residual_paths();
  }
}

// What ends a path starts smaller, so that the sum of all paths does not grow with their number.
void Gpt2Impl::scale_residual_paths() {
  at::NoGradGuard no_grad;
  const double factor = 1 / std::sqrt(2.0 * static_cast<double>(config().num_layers));
  for (auto& block : blocks_) {
    block->attended->weight.mul_(factor);
    block->narrow->weight.mul_(factor);
  }
}

nn::Stack Gpt2Impl::body(std::int64_t tokens) {
  nn::Stack stack{
      .embed = [this, tokens](const at::Tensor& x) { return wte_(x) + wpe_->weight.narrow(0, 0, tokens); },
      .blocks = {},
      .head = {}};
  for (auto& block : blocks_) {
    stack.blocks.emplace_back([&block](const at::Tensor& x) { return block(x); });
  }
  return stack;
}

const at::Tensor& Gpt2Impl::head_weight() const {
  return lm_head_ ? lm_head_->weight : wte_->weight;
}

}  // namespace snug::models
