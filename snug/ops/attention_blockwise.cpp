#include "snug/ops/attention_blockwise.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

namespace snug::ops {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// fp32 for halves.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}

// Queries that share a key head become rows of it: [batch, heads, tokens, n] -> [batch, kv_heads, rows, n].
at::Tensor by_key_head(const at::Tensor& tensor, std::int64_t kv_heads) {
  return tensor.reshape({tensor.size(0), kv_heads, -1, tensor.size(3)});
}

// The way back, laid out in memory by token.
at::Tensor by_query_head(const at::Tensor& rows, const at::Tensor& like) {
  const at::Tensor heads = rows.view(like.sizes()).to(like.scalar_type());
  return heads.transpose(1, 2).contiguous().transpose(1, 2);
}

at::Tensor by_token(const at::Tensor& heads, const at::Tensor& like) {
  return heads.to(like.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2);
}

struct Block {
  at::Tensor keys, values;  // [batch, kv_heads, n, head_dim]
  at::Tensor hidden;        // [tokens, n], true where a query may not look; undefined if it may everywhere
  std::int64_t first, count;

  at::Tensor scores(const at::Tensor& rows, double scale) const {
    at::Tensor scores = at::matmul(rows, keys.transpose(2, 3)).mul_(scale);
    if (hidden.defined()) scores.unflatten(2, {-1, hidden.size(0)}).masked_fill_(hidden, kNever);
    return scores;
  }
};

template <class Use>
void each_block(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal,
                std::int64_t window, std::int64_t block_size, Use use) {
  for (std::int64_t first = 0; first < key.size(2); first += block_size) {
    const std::int64_t count = std::min(block_size, key.size(2) - first);
    Block block{.keys = widened(key.narrow(2, first, count)),
                .values = widened(value.narrow(2, first, count)),
                .hidden = {},
                .first = first,
                .count = count};
    // Not by at::arange, which no allocator sees on Meta (see rope.cpp).
    const auto flags = query.options().dtype(at::kBool);
    if (causal) block.hidden = at::ones({query.size(2), count}, flags).triu_(/*diagonal=*/1 - first);
    if (window > 0)
      block.hidden.bitwise_or_(at::ones({query.size(2), count}, flags).tril_(/*diagonal=*/-window - first));
    use(block);
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_blockwise(const at::Tensor& query, const at::Tensor& key,
                                                       const at::Tensor& value, bool causal, double scale,
                                                       std::int64_t window, std::int64_t block_size) {
  const at::Tensor rows = by_key_head(widened(query), key.size(1));
  const std::vector<std::int64_t> one_per_row{rows.size(0), rows.size(1), rows.size(2), 1};
  // Finite: a row may see nothing of its first blocks, and what was summed is then scaled by exp(0).
  at::Tensor largest = at::full(one_per_row, std::numeric_limits<float>::lowest(), rows.options());
  at::Tensor sum = at::zeros(one_per_row, rows.options());
  at::Tensor weighted = at::zeros_like(rows);
  each_block(query, key, value, causal, window, block_size, [&](const Block& block) {
    at::Tensor scores = block.scores(rows, scale);
    const at::Tensor now = at::maximum(largest, scores.amax(-1, /*keepdim=*/true));
    const at::Tensor shrink = (largest - now).exp_();
    const at::Tensor probabilities = scores.sub_(now).exp_();
    sum.mul_(shrink).add_(probabilities.sum(-1, /*keepdim=*/true));
    weighted.mul_(shrink).add_(at::matmul(probabilities, block.values));
    largest = now;
  });
  const at::Tensor lse = largest.add_(sum.log()).view({query.size(0), query.size(1), query.size(2)});
  return {by_query_head(weighted.div_(sum), query), lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_blockwise_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    std::int64_t block_size) {
  const std::int64_t kv_heads = key.size(1);
  const at::Tensor rows = by_key_head(widened(query), kv_heads),
                   grad = by_key_head(widened(grad_out), kv_heads),
                   log_sum = by_key_head(lse.unsqueeze(-1), kv_heads);
  // What every score of a row loses, as its probabilities sum to one.
  const at::Tensor shared = (grad * by_key_head(widened(out), kv_heads)).sum(-1, /*keepdim=*/true);
  at::Tensor grad_rows = at::zeros_like(rows);
  const auto wide = key.options().dtype(rows.scalar_type());
  at::Tensor grad_key = at::zeros(key.sizes(), wide), grad_value = at::zeros(key.sizes(), wide);
  each_block(query, key, value, causal, window, block_size, [&](const Block& block) {
    const at::Tensor probabilities = block.scores(rows, scale).sub_(log_sum).exp_();
    grad_value.narrow(2, block.first, block.count).copy_(at::matmul(probabilities.transpose(2, 3), grad));
    at::Tensor grad_scores = at::matmul(grad, block.values.transpose(2, 3)).sub_(shared);
    grad_scores.mul_(probabilities).mul_(scale);
    grad_rows.add_(at::matmul(grad_scores, block.keys));
    grad_key.narrow(2, block.first, block.count).copy_(at::matmul(grad_scores.transpose(2, 3), rows));
  });
  return {by_query_head(grad_rows, query), by_token(grad_key, key), by_token(grad_value, value)};
}

}  // namespace snug::ops
