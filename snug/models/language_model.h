// What every family of models is to a trainer: tokens in, logits or a loss out, parameters under their
// published names, so that files of weights load without renaming.
//
//   std::shared_ptr<LanguageModel> model = make_model(load_config("qwen3-0.6b"), at::kCUDA);
//   model->loss_sum(tokens, targets).backward();
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "snug/base/export.h"
#include "snug/models/config.h"
#include "snug/nn/stack.h"
#include "snug/ops/attention.h"

namespace snug::models {

struct ModelOptions {
  at::TensorOptions tensors = {};  // device and dtype of all parameters; kMeta takes no memory
  ops::AttentionBackend attention = ops::AttentionBackend::Default;
  // Matrices start as normal(0, config.initializer_range) from the default generator, norms as ones, biases
  // as zeros. Else matrices hold whatever was there: for weights that are loaded.
  bool fresh = true;
  // Told of each part of the model when it was made, in the order of the forward, with the region it runs in.
  std::function<void(std::string_view region, const torch::nn::Module& part)> on_part = {};
  // Calls `write`, which fills a fresh parameter, when there is memory for it; none: there is.
  std::function<void(const at::Tensor& parameter, const std::function<void()>& write)> on_write = {};
};

class SNUG_API LanguageModel : public torch::nn::Module {
 public:
  at::Tensor logits(const at::Tensor& tokens);  // [batch, tokens] int64 -> [batch, tokens, vocab_size]

  // Sum (not mean) of the cross entropy over all targets but -100, an fp32 scalar. Sums over micro-batches
  // add up, so that dividing by the number of counted targets is exact however a batch is cut: by `scale`,
  // which the gradients then have from the start. head_chunks: pieces in which the logits are made; 0: by
  // their size.
  at::Tensor loss_sum(const at::Tensor& tokens, const at::Tensor& targets, double scale = 1,
                      std::int64_t head_chunks = 0);

  const ModelConfig& config() const { return config_; }

 protected:
  explicit LanguageModel(const ModelConfig& config) : config_(config) {}
  // Those in `smaller` by this factor.
  void start_fresh(const ModelOptions& options, const std::vector<at::Tensor>& smaller = {},
                   double factor = 1);
  // Binds the part's parameters to that region.
  static void made(std::string_view region, const torch::nn::Module& part, const ModelOptions& options);

  virtual nn::Stack body(std::int64_t tokens) = 0;  // embed and blocks, for sequences of so many tokens
  virtual at::Tensor last_norm(const at::Tensor& hidden) = 0;
  virtual const at::Tensor& head_weight() const = 0;  // [vocab_size, hidden_size]

 private:
  at::Tensor run(const at::Tensor& tokens, nn::Stack::Part head);

  ModelConfig config_;
};

SNUG_API std::shared_ptr<LanguageModel> make_model(const ModelConfig& config,
                                                   const ModelOptions& options = {});

}  // namespace snug::models
