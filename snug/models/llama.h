// The Llama family: parameter names as published, so that files of weights load without renaming.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "snug/base/export.h"
#include "snug/models/config.h"
#include "snug/nn/block.h"
#include "snug/nn/embedding.h"
#include "snug/nn/projection.h"
#include "snug/nn/rms_norm.h"
#include "snug/nn/stack.h"

namespace snug::models {

class SNUG_API LlamaImpl : public torch::nn::Module {
 public:
  // Device and dtype of all parameters come from options; kMeta builds a model that takes no memory. Matrices
  // start as normal(0, config.initializer_range) from the default generator, norms as ones.
  explicit LlamaImpl(const LlamaConfig& config, const at::TensorOptions& options = {},
                     ops::AttentionBackend attention = ops::AttentionBackend::Default);

  at::Tensor logits(const at::Tensor& tokens);  // [batch, tokens] int64 -> [batch, tokens, vocab_size]

  // Sum (not mean) of the cross entropy over all targets but -100, an fp32 scalar. Sums over micro-batches
  // add up, so that dividing by the number of counted targets is exact however a batch is cut: by `scale`,
  // which the gradients then have from the start. head_chunks: pieces in which the logits are made; 0: by
  // their size.
  at::Tensor loss_sum(const at::Tensor& tokens, const at::Tensor& targets, double scale = 1,
                      std::int64_t head_chunks = 0);

  const LlamaConfig& config() const { return config_; }

 private:
  at::Tensor run(const at::Tensor& tokens, nn::Stack::Part head);
  const at::Tensor& head_weight() const;
  at::Tensor project_to_vocabulary(const at::Tensor& hidden);

  LlamaConfig config_;
  nn::Embedding embed_tokens_ = nullptr;
  std::vector<nn::Block> layers_;
  nn::RmsNorm norm_ = nullptr;
  nn::Projection lm_head_ = nullptr;  // absent when the embedding serves as the head
};
TORCH_MODULE(Llama);

}  // namespace snug::models
