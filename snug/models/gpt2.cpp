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
  made("embed", *wte_, options);
  made("embed", *wpe_, options);

  auto blocks = transformer->register_module("h", std::make_shared<torch::nn::Module>("h"));
  const nn::Gpt2BlockShape shape{config.hidden_size, config.intermediate_size, config.num_heads,
                                 config.norm_eps, options.attention};
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    blocks_.push_back(blocks->register_module(std::to_string(i), nn::Gpt2Block(shape, tensors)));
    made("layers." + std::to_string(i), *blocks_.back(), options);
  }
  ln_f_ = transformer->register_module("ln_f", nn::LayerNorm(config.hidden_size, config.norm_eps, tensors));
  made("head", *ln_f_, options);
  if (!config.tied_embeddings) {
    lm_head_ = register_module("lm_head", nn::Projection(config.hidden_size, config.vocab_size, tensors));
    made("head", *lm_head_, options);
  }
  if (!options.fresh) return;
  // What ends a path starts smaller, so that the sum of all paths does not grow with their number.
  std::vector<at::Tensor> ends_of_paths;
  for (auto& block : blocks_) {
    ends_of_paths.push_back(block->attended->weight);
    ends_of_paths.push_back(block->narrow->weight);
  }
  start_fresh(options, ends_of_paths, 1 / std::sqrt(2.0 * static_cast<double>(config.num_layers)));
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
