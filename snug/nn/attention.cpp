#include "snug/nn/attention.h"

#include "snug/base/error.h"
#include "snug/nn/heads.h"
#include "snug/ops/project.h"

namespace snug::nn {
namespace {

at::Tensor rotate(const at::Tensor& x, RmsNorm& norm, std::int64_t head_dim, const ops::RopeTable& table) {
  return norm ? norm->rotated(x.unflatten(2, {-1, head_dim}), table)
              : ops::rope(split_heads(x, head_dim), table);
}

}  // namespace

AttentionImpl::AttentionImpl(const AttentionShape& shape, const at::TensorOptions& options)
    : head_dim_(shape.head_dim), window_(shape.window), backend_(shape.backend) {
  check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
        "attention: the number of key heads must divide the number of query heads, got ", shape.kv_heads,
        " and ", shape.heads);
  const std::int64_t queries = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
  const ProjectionForm form{.bias = shape.qkv_bias};
  q_proj = register_module("q_proj", Projection(shape.hidden, queries, options, form));
  k_proj = register_module("k_proj", Projection(shape.hidden, keys, options, form));
  v_proj = register_module("v_proj", Projection(shape.hidden, keys, options, form));
  o_proj = register_module("o_proj", Projection(queries, shape.hidden, options));
  if (!shape.qk_norm_eps) return;
  q_norm = register_module("q_norm", RmsNorm(shape.head_dim, *shape.qk_norm_eps, options));
  k_norm = register_module("k_norm", RmsNorm(shape.head_dim, *shape.qk_norm_eps, options));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const ops::RopeTable& table) {
  std::vector<at::Tensor> biases;
  if (q_proj->bias.defined()) biases = {q_proj->bias, k_proj->bias, v_proj->bias};
  auto parts = ops::project(x, {q_proj->weight, k_proj->weight, v_proj->weight}, biases);
  auto query = rotate(parts[0], q_norm, head_dim_, table);
  auto key = rotate(parts[1], k_norm, head_dim_, table);
  auto mixed = ops::attention(query, key, split_heads(parts[2], head_dim_),
                              {.causal = true, .window = window_, .backend = backend_});
  return o_proj(join_heads(mixed));
}

}  // namespace snug::nn
