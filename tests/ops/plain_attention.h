// Attention as the textbook writes it, with its gradients by autograd: what the kernels are measured against.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace snug::testing {

struct AttentionCase {
  std::int64_t batch, heads, kv_heads, tokens, key_tokens, head_dim;
  bool causal;
  std::int64_t window = 0;
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

// True where a query sees a key; undefined where all see all.
inline std::optional<at::Tensor> visible(const AttentionCase& s, at::Device device = at::kCPU) {
  if (!s.causal) return std::nullopt;
  const at::Tensor past = at::ones({s.tokens, s.key_tokens}, at::dtype(at::kBool).device(device)).tril();
  return s.window == 0 ? past : past.triu(1 - s.window);
}

inline at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                  const AttentionCase& shape) {
  auto group = query.size(1) / key.size(1);
  auto scores = query.matmul(key.repeat_interleave(group, 1).transpose(2, 3)) / std::sqrt(query.size(3));
  if (const auto seen = visible(shape))
    scores = scores.masked_fill(seen->logical_not(), -std::numeric_limits<double>::infinity());
  return scores.softmax(-1).matmul(value.repeat_interleave(group, 1));
}

inline double error(const at::Tensor& result, const at::Tensor& exact) {
  return (result.to(at::kDouble) - exact).abs().max().item<double>();
}

}  // namespace snug::testing
