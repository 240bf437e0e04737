// Causal self-attention with rotary positions and grouped queries.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "snug/base/export.h"
#include "snug/nn/projection.h"
#include "snug/nn/rms_norm.h"
#include "snug/ops/attention.h"
#include "snug/ops/rope.h"

namespace snug::nn {

struct AttentionShape {
  std::int64_t hidden, heads, kv_heads, head_dim;
  ops::AttentionBackend backend = ops::AttentionBackend::Default;
  std::int64_t window = 0;                 // of a layer that slides; 0: it sees all tokens before
  bool qkv_bias = false;                   // as Qwen2 has
  std::optional<double> qk_norm_eps = {};  // queries and keys go through a norm, as in Qwen3
};

class SNUG_API AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const AttentionShape& shape, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const ops::RopeTable& table);  // x [batch, tokens, hidden]

  Projection q_proj = nullptr, k_proj = nullptr, v_proj = nullptr, o_proj = nullptr;
  RmsNorm q_norm = nullptr, k_norm = nullptr;  // of each head; absent without qk_norm_eps

 private:
  std::int64_t head_dim_, window_;
  ops::AttentionBackend backend_;
};
TORCH_MODULE(Attention);

}  // namespace snug::nn
