// Between a row of all heads and one row per head.
#pragma once

#include <ATen/core/Tensor.h>

namespace snug::nn {

// [batch, tokens, heads * head_dim] -> [batch, heads, tokens, head_dim]
inline at::Tensor split_heads(const at::Tensor& x, std::int64_t head_dim) {
  return x.unflatten(2, {-1, head_dim}).transpose(1, 2);
}

// And back; one copy.
inline at::Tensor join_heads(const at::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

}  // namespace snug::nn
