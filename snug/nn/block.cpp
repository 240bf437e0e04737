#include "snug/nn/block.h"

namespace snug::nn {

BlockImpl::BlockImpl(const AttentionShape& shape, std::int64_t intermediate, double norm_eps,
                     const at::TensorOptions& options)
    : input_layernorm(register_module("input_layernorm", RmsNorm(shape.hidden, norm_eps, options))),
      self_attn(register_module("self_attn", Attention(shape, options))),
      post_attention_layernorm(
          register_module("post_attention_layernorm", RmsNorm(shape.hidden, norm_eps, options))),
      mlp(register_module("mlp", Mlp(shape.hidden, intermediate, options))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x, const ops::RopeTable& table) {
  const auto [attended, normed] = post_attention_layernorm->add(self_attn(input_layernorm(x), table), x);
  return attended + mlp(normed);
}

}  // namespace snug::nn
