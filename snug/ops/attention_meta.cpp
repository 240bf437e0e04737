// Attention on Meta: sizes, strides and every allocation of the CPU kernels, scratch included, in their
// order, so that a step captured on Meta takes the bytes that the CPU would take. Block sizes and scratch as
// in torch 2.11, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp. Where Meta stands for CUDA, what cuDNN's
// kernels take. Not modelled: packing of 16-bit operands, whose buffers do not come from the allocator, and
// what oneDNN takes inside a 16-bit matrix product.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "snug/hooks/meta_target.h"
#include "snug/ops/attention_blockwise.h"
#include "snug/ops/attention_layout.h"
#include "snug/ops/attention_window.h"
#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

struct BlockSizes {
  std::int64_t queries, keys;  // tokens handled at a time
};

BlockSizes block_of(std::int64_t query_tokens, std::int64_t key_tokens) {
  std::int64_t queries = query_tokens >= 768 ? 256 : query_tokens >= 192 ? 64 : 32;
  return {std::min(queries, query_tokens), std::min<std::int64_t>(512, key_tokens)};
}

at::Tensor scratch(std::int64_t elements_per_thread, const at::TensorOptions& options) {
  return at::empty({at::get_num_threads(), elements_per_thread}, options);
}

// [batch, heads, tokens, head_dim] in sizes, [batch, tokens, heads, head_dim] in memory.
at::Tensor empty_by_token(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

at::Tensor empty_lse(const at::Tensor& query) {
  return at::empty({query.size(0), query.size(2), query.size(1)}, wide_options(query)).transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor> as_on_cpu(const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor&, const at::Tensor& /*mask*/) {
  const auto accumulate = wide_options(query);
  const auto [queries, keys] = block_of(query.size(2), key.size(2));
  at::Tensor out = empty_by_token(query);
  at::Tensor lse = empty_lse(query);
  at::Tensor scores = scratch(queries * (keys + 2 + query.size(3)), accumulate);
  at::Tensor reduced_scores =
      scratch(at::isReducedFloatingType(query.scalar_type()) ? queries * keys : 0, query.options());
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_as_on_cpu(const at::Tensor& grad_out,
                                                                  const at::Tensor& query,
                                                                  const at::Tensor& key, const at::Tensor&,
                                                                  const at::Tensor&, const at::Tensor&,
                                                                  const at::Tensor& /*mask*/) {
  const auto accumulate = wide_options(query);
  const auto [queries, keys] = block_of(query.size(2), key.size(2));
  at::Tensor grad_query = empty_by_token(query);
  at::Tensor grad_key = empty_by_token(key);
  at::Tensor grad_value = empty_by_token(key);
  at::Tensor grad_out_by_token = grad_out.transpose(1, 2).contiguous();
  at::Tensor scores = scratch(2 * queries * keys, accumulate);
  at::Tensor reduced_scores =
      scratch(at::isReducedFloatingType(query.scalar_type()) ? 2 * queries * keys : 0, query.options());
  at::Tensor row_sums = scratch(queries, accumulate);
  return {grad_query, grad_key, grad_value};
}

std::tuple<at::Tensor, at::Tensor> as_on_cuda(const at::Tensor& query, std::int64_t window) {
  at::Tensor ordered;
  if (window == 0) ordered = in_order_of_tokens(query);  // a window is FlashAttention's
  at::Tensor out = empty_by_token(query);
  return {out, empty_lse(query)};
}

// cuDNN's: the query's gradient in fp32, a number per query, and where queries share keys, the gradients of
// keys and values for each of them. As measured at multiples of 128 tokens.
std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_as_on_cuda(const at::Tensor& query,
                                                                   const at::Tensor& key,
                                                                   const at::Tensor& lse) {
  constexpr std::int64_t kAndSome = 128;
  at::Tensor grad_query = empty_by_token(query);
  at::Tensor grad_key = empty_by_token(key);
  at::Tensor grad_value = empty_by_token(key);
  const bool shared = query.size(1) != key.size(1);
  at::empty({query.numel() + lse.numel() + (shared ? query.numel() : 0) + kAndSome}, wide_options(query));
  return {grad_query, grad_key, grad_value};
}

std::tuple<at::Tensor, at::Tensor> attention_meta(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value, bool causal, double scale,
                                                  std::int64_t window, std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise(query, key, value, causal, scale, window, *block);

  if (hooks::meta_stands_for_cuda()) return as_on_cuda(query, window);
  if (window > 0) return attention_windowed(query, key, value, window, as_on_cpu);
  return as_on_cpu(query, key, value, {});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_meta(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise_backward(grad_out, query, key, value, out, lse, causal, scale, window, *block);

  if (hooks::meta_stands_for_cuda()) return backward_as_on_cuda(query, key, lse);
  if (window > 0)
    return attention_windowed_backward(grad_out, query, key, value, out, lse, window, backward_as_on_cpu);
  return backward_as_on_cpu(grad_out, query, key, value, out, lse, {});
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("attention", TORCH_FN(attention_meta));
  library.impl("attention_backward", TORCH_FN(attention_backward_meta));
}

}  // namespace
}  // namespace snug::ops
