#include "snug/nn/gpt2_block.h"

#include <memory>

#include "snug/nn/heads.h"
#include "snug/ops/gelu.h"

namespace snug::nn {

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2BlockShape& shape, const at::TensorOptions& options)
    : head_dim_(shape.hidden / shape.heads), backend_(shape.backend) {
  const auto projection = [&](std::int64_t in, std::int64_t out) {
    return Projection(in, out, options, ProjectionForm{.bias = true, .layout = ops::WeightLayout::InOut});
  };
  ln_1 = register_module("ln_1", LayerNorm(shape.hidden, shape.norm_eps, options));
  auto attn = register_module("attn", std::make_shared<torch::nn::Module>("attn"));
  qkv = attn->register_module("c_attn", projection(shape.hidden, 3 * shape.hidden));
  attended = attn->register_module("c_proj", projection(shape.hidden, shape.hidden));
  ln_2 = register_module("ln_2", LayerNorm(shape.hidden, shape.norm_eps, options));
  auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>("mlp"));
  widen = mlp->register_module("c_fc", projection(shape.hidden, shape.intermediate));
  narrow = mlp->register_module("c_proj", projection(shape.intermediate, shape.hidden));
}

at::Tensor Gpt2BlockImpl::attend(const at::Tensor& x) {
  auto parts = qkv(x).chunk(3, -1);
  for (at::Tensor& part : parts) part = split_heads(part, head_dim_);
  auto mixed = ops::attention(parts[0], parts[1], parts[2], {.causal = true, .backend = backend_});
  return attended(join_heads(mixed));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x) {
  const auto [attended_x, normed] = ln_2->add(attend(ln_1(x)), x);
  return attended_x + narrow(ops::gelu(widen(normed), ops::GeluForm::Tanh));
}

}  // namespace snug::nn
