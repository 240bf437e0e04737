// GPT-2 (Radford et al. 2019).
#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "snug/base/export.h"
#include "snug/models/language_model.h"
#include "snug/nn/embedding.h"
#include "snug/nn/gpt2_block.h"
#include "snug/nn/layer_norm.h"
#include "snug/nn/projection.h"

namespace snug::models {

class SNUG_API Gpt2Impl : public LanguageModel {
 public:
  explicit Gpt2Impl(const ModelConfig& config, const ModelOptions& options = {});

 protected:
  nn::Stack body(std::int64_t tokens) override;
  at::Tensor last_norm(const at::Tensor& hidden) override { return ln_f_(hidden); }
  const at::Tensor& head_weight() const override;

 private:
  nn::Embedding wte_ = nullptr, wpe_ = nullptr;  // of tokens, of positions
  std::vector<nn::Gpt2Block> blocks_;
  nn::LayerNorm ln_f_ = nullptr;
  nn::Projection lm_head_ = nullptr;  // absent when the embedding serves as the head
};
TORCH_MODULE(Gpt2);

}  // namespace snug::models
