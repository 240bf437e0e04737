// One transformer block: attention and a feed-forward part, each behind a norm and beside a residual path.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/nn/attention.h"
#include "snug/nn/mlp.h"
#include "snug/nn/rms_norm.h"

namespace snug::nn {

class SNUG_API BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const AttentionShape& shape, std::int64_t intermediate, double norm_eps,
            const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const ops::RopeTable& table);  // x [batch, tokens, hidden]

  RmsNorm input_layernorm;
  Attention self_attn;
  RmsNorm post_attention_layernorm;
  Mlp mlp;
};
TORCH_MODULE(Block);

}  // namespace snug::nn
