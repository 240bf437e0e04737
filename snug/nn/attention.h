// Causal self-attention with rotary positions and grouped queries.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/nn/projection.h"
#include "snug/ops/attention.h"
#include "snug/ops/rope.h"

namespace snug::nn {

struct AttentionShape {
  std::int64_t hidden, heads, kv_heads, head_dim;
  ops::AttentionBackend backend = ops::AttentionBackend::Default;
};

class SNUG_API AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const AttentionShape& shape, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const ops::RopeTable& table);  // x [batch, tokens, hidden]

  Projection q_proj, k_proj, v_proj, o_proj;

 private:
  std::int64_t head_dim_;
  ops::AttentionBackend backend_;
};
TORCH_MODULE(Attention);

}  // namespace snug::nn
