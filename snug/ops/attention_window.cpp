#include "snug/ops/attention_window.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

// Some queries, and the keys that at least one of them sees.
struct Lot {
  std::int64_t query, queries, key, keys;
  at::Tensor mask;  // [queries, keys], 0 or minus infinity

  at::Tensor of_queries(const at::Tensor& tensor) const { return tensor.narrow(2, query, queries); }
  at::Tensor of_keys(const at::Tensor& tensor) const { return tensor.narrow(2, key, keys); }
};

// Of as many queries as are a quarter of the window: a kernel computes what a mask hides, here a fifth of it.
std::int64_t queries_at_a_time(std::int64_t window) {
  return std::clamp<std::int64_t>(window / 4, 64, 1024);
}

// Later keys, and those that left the window. A sum, as either is 0 where the other may be infinite.
at::Tensor make_mask(const Lot& lot, std::int64_t window, const at::TensorOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const std::int64_t own = lot.query - lot.key;  // the first query's own key
  at::Tensor mask = at::full({lot.queries, lot.keys}, kNever, options).triu_(own + 1);
  return mask.add_(at::full({lot.queries, lot.keys}, kNever, options).tril_(own - window));
}

template <class Use>
void each_lot(const at::Tensor& query, std::int64_t window, Use use) {
  const std::int64_t tokens = query.size(2), at_a_time = queries_at_a_time(window);
  for (std::int64_t first = 0; first < tokens; first += at_a_time) {
    Lot lot{.query = first,
            .queries = std::min(at_a_time, tokens - first),
            .key = std::max<std::int64_t>(0, first + 1 - window),
            .keys = 0,
            .mask = {}};
    lot.keys = lot.query + lot.queries - lot.key;
    lot.mask = make_mask(lot, window, wide_options(query));
    use(lot);
  }
}

// [batch, heads, tokens, head_dim] in sizes, [batch, tokens, heads, head_dim] in memory.
std::vector<std::int64_t> sizes_by_token(const at::Tensor& like) {
  return {like.size(0), like.size(2), like.size(1), like.size(3)};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attention_windowed(const at::Tensor& query, const at::Tensor& key,
                                                      const at::Tensor& value, std::int64_t window,
                                                      MaskedAttention kernel) {
  at::Tensor out = at::empty(sizes_by_token(query), query.options()).transpose(1, 2);
  at::Tensor lse =
      at::empty({query.size(0), query.size(2), query.size(1)}, wide_options(query)).transpose(1, 2);
  each_lot(query, window, [&](const Lot& lot) {
    const auto [some, some_lse] =
        kernel(lot.of_queries(query), lot.of_keys(key), lot.of_keys(value), lot.mask);
    lot.of_queries(out).copy_(some);
    lot.of_queries(lse).copy_(some_lse);
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_windowed_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, std::int64_t window, MaskedAttentionBackward kernel) {
  at::Tensor grad_query = at::empty(sizes_by_token(query), query.options()).transpose(1, 2);
  // A key is seen by queries of several lots: summed in fp32 and rounded once.
  at::Tensor grad_key = at::zeros(sizes_by_token(key), wide_options(key)).transpose(1, 2);
  at::Tensor grad_value = at::zeros(sizes_by_token(key), wide_options(key)).transpose(1, 2);
  each_lot(query, window, [&](const Lot& lot) {
    const auto [some_query, some_key, some_value] =
        kernel(lot.of_queries(grad_out), lot.of_queries(query), lot.of_keys(key), lot.of_keys(value),
               lot.of_queries(out), lot.of_queries(lse), lot.mask);
    lot.of_queries(grad_query).copy_(some_query);
    lot.of_keys(grad_key).add_(some_key);
    lot.of_keys(grad_value).add_(some_value);
  });
  return {grad_query, grad_key.to(key.scalar_type()), grad_value.to(key.scalar_type())};
}

}  // namespace snug::ops
