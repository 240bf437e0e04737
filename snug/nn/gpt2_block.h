// The block of GPT-2: attention and a feed-forward part with biases, each behind a layer norm and beside a
// residual path. Weights lie as [in, out], queries, keys and values in one: as published.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/nn/layer_norm.h"
#include "snug/nn/projection.h"
#include "snug/ops/attention.h"

namespace snug::nn {

struct Gpt2BlockShape {
  std::int64_t hidden, intermediate, heads;
  double norm_eps;
  ops::AttentionBackend backend = ops::AttentionBackend::Default;
};

class SNUG_API Gpt2BlockImpl : public torch::nn::Module {
 public:
  Gpt2BlockImpl(const Gpt2BlockShape& shape, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);  // [batch, tokens, hidden]

  LayerNorm ln_1 = nullptr, ln_2 = nullptr;
  Projection qkv = nullptr, attended = nullptr;  // attn.c_attn, attn.c_proj
  Projection widen = nullptr, narrow = nullptr;  // mlp.c_fc, mlp.c_proj

 private:
  at::Tensor attend(const at::Tensor& x);

  std::int64_t head_dim_;
  ops::AttentionBackend backend_;
};
TORCH_MODULE(Gpt2Block);

}  // namespace snug::nn
