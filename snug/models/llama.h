// The Llama family, and those that differ from it by a few tensors: Mistral, Qwen2 and Qwen3.
#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "snug/base/export.h"
#include "snug/models/language_model.h"
#include "snug/nn/block.h"
#include "snug/nn/embedding.h"
#include "snug/nn/projection.h"
#include "snug/nn/rms_norm.h"

namespace snug::models {

class SNUG_API LlamaImpl : public LanguageModel {
 public:
  explicit LlamaImpl(const ModelConfig& config, const ModelOptions& options = {});
  LlamaImpl(const ModelConfig& config, const at::TensorOptions& tensors)
      : LlamaImpl(config, ModelOptions{.tensors = tensors}) {}

 protected:
  nn::Stack body(std::int64_t tokens) override;
  at::Tensor last_norm(const at::Tensor& hidden) override { return norm_(hidden); }
  const at::Tensor& head_weight() const override;

 private:
  nn::Embedding embed_tokens_ = nullptr;
  std::vector<nn::Block> layers_;
  nn::RmsNorm norm_ = nullptr;
  nn::Projection lm_head_ = nullptr;  // absent when the embedding serves as the head
};
TORCH_MODULE(Llama);

}  // namespace snug::models
