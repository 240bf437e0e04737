#include "snug/nn/attention.h"

#include "snug/base/error.h"
#include "snug/ops/project.h"

namespace snug::nn {
namespace {

// [batch, tokens, heads * head_dim] -> [batch, heads, tokens, head_dim]
at::Tensor split_heads(const at::Tensor& x, std::int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}

}  // namespace

AttentionImpl::AttentionImpl(const AttentionShape& shape, const at::TensorOptions& options)
    : q_proj(register_module("q_proj", Projection(shape.hidden, shape.heads * shape.head_dim, options))),
      k_proj(register_module("k_proj", Projection(shape.hidden, shape.kv_heads * shape.head_dim, options))),
      v_proj(register_module("v_proj", Projection(shape.hidden, shape.kv_heads * shape.head_dim, options))),
      o_proj(register_module("o_proj", Projection(shape.heads * shape.head_dim, shape.hidden, options))),
      head_dim_(shape.head_dim),
      backend_(shape.backend) {
  check(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0,
        "attention: the number of key heads must divide the number of query heads, got ", shape.kv_heads,
        " and ", shape.heads);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const ops::RopeTable& table) {
  auto parts = ops::project(x, {q_proj->weight, k_proj->weight, v_proj->weight});
  for (at::Tensor& part : parts) part = split_heads(part, head_dim_);
  auto query = ops::rope(parts[0], table);
  auto key = ops::rope(parts[1], table);
  auto mixed = ops::attention(query, key, parts[2], {.causal = true, .backend = backend_});
  return o_proj(mixed.transpose(1, 2).flatten(2));
}

}  // namespace snug::nn
