#include "snug/models/language_model.h"

#include <ATen/ops/linear.h>

#include <algorithm>
#include <utility>

#include "snug/base/error.h"
#include "snug/models/gpt2.h"
#include "snug/models/llama.h"
#include "snug/ops/linear_cross_entropy.h"

namespace snug::models {
namespace {

constexpr std::int64_t kIgnoredTarget = -100;

}  // namespace

void LanguageModel::start_fresh(const ModelOptions& options, const std::vector<at::Tensor>& smaller,
                                double factor) {
  at::NoGradGuard no_grad;
  for (auto& parameter : parameters()) {
    if (parameter.dim() < 2) continue;
    const bool is_smaller =
        std::ranges::any_of(smaller, [&](const at::Tensor& other) { return other.is_same(parameter); });
    const auto write = [&] {
      parameter.normal_(0.0, config_.initializer_range);
      if (is_smaller) parameter.mul_(factor);
    };
    options.on_write ? options.on_write(parameter, write) : write();
  }
}

void LanguageModel::made(std::string_view region, const torch::nn::Module& part,
                         const ModelOptions& options) {
  nn::bind_to_region(region, part);
  if (options.on_part) options.on_part(region, part);
}

at::Tensor LanguageModel::run(const at::Tensor& tokens, nn::Stack::Part head) {
  check(tokens.dim() == 2, "model: expected tokens [batch, tokens], got ", tokens.sizes());
  check(tokens.size(1) <= config_.max_positions, "model: ", tokens.size(1),
        " tokens in a row, the model has ", config_.max_positions, " positions");
  nn::Stack stack = body(tokens.size(1));
  stack.head = std::move(head);
  return stack.run(tokens);
}

at::Tensor LanguageModel::logits(const at::Tensor& tokens) {
  return run(tokens,
             [this](const at::Tensor& hidden) { return at::linear(last_norm(hidden), head_weight()); });
}

at::Tensor LanguageModel::loss_sum(const at::Tensor& tokens, const at::Tensor& targets, double scale,
                                   std::int64_t head_chunks) {
  check(targets.sizes() == tokens.sizes(), "model: targets must have the sizes of tokens ", tokens.sizes(),
        ", got ", targets.sizes());
  check(head_chunks >= 0, "model: head_chunks must not be negative, got ", head_chunks);
  const std::int64_t rows = head_chunks > 0 ? (tokens.numel() - 1) / head_chunks + 1 : 0;
  return run(tokens, [&](const at::Tensor& hidden) {
    return ops::linear_cross_entropy(
        last_norm(hidden), head_weight(), targets,
        {.scale = scale, .ignore_index = kIgnoredTarget, .rows_at_a_time = rows});
  });
}

std::shared_ptr<LanguageModel> make_model(const ModelConfig& config, const ModelOptions& options) {
  if (config.family == Family::Gpt2) return std::make_shared<Gpt2Impl>(config, options);
  return std::make_shared<LlamaImpl>(config, options);
}

}  // namespace snug::models
