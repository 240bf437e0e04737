// Attention as the textbook writes it, with its gradients by autograd: what the kernels are measured against.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

namespace snug::testing {

struct AttentionCase {
  std::int64_t batch, heads, kv_heads, tokens, key_tokens, head_dim;
  bool causal;
};

// out, then the gradients of query, key and value.
using AttentionResults = std::vector<at::Tensor>;

struct AttentionInputs {
  at::Tensor query, key, value, grad;

  AttentionInputs to(at::ScalarType dtype) const {
    return {query.to(dtype), key.to(dtype), value.to(dtype), grad.to(dtype)};
  }
};

inline AttentionInputs random_inputs(const AttentionCase& s) {
  auto make = [&](std::int64_t heads, std::int64_t tokens) {
    return at::randn({s.batch, tokens, heads, s.head_dim}, at::kDouble).transpose(1, 2);
  };
  return {make(s.heads, s.tokens), make(s.kv_heads, s.key_tokens), make(s.kv_heads, s.key_tokens),
          make(s.heads, s.tokens)};
}

template <class Function>
AttentionResults run(const AttentionInputs& in, Function&& function) {
  auto leaf = [](const at::Tensor& t) { return t.detach().set_requires_grad(true); };
  auto query = leaf(in.query), key = leaf(in.key), value = leaf(in.value);
  auto out = function(query, key, value);
  auto grads = torch::autograd::grad({out}, {query, key, value}, {in.grad});
  grads.insert(grads.begin(), out.detach());
  return grads;
}

inline at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                  bool causal) {
  auto group = query.size(1) / key.size(1);
  auto scores = query.matmul(key.repeat_interleave(group, 1).transpose(2, 3)) / std::sqrt(query.size(3));
  if (causal) {
    auto future = at::ones({query.size(2), key.size(2)}, at::kBool).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  return scores.softmax(-1).matmul(value.repeat_interleave(group, 1));
}

inline double error(const at::Tensor& result, const at::Tensor& exact) {
  return (result.to(at::kDouble) - exact).abs().max().item<double>();
}

}  // namespace snug::testing
