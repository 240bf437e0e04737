// embedding on the CPU, and on Meta, which allocates the same.
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "snug/hooks/meta_target.h"
#include "snug/ops/cpu_rows.h"

namespace snug::ops {
namespace {

at::Tensor looked_up_room(const at::Tensor& weight, const at::Tensor& tokens) {
  auto sizes = tokens.sizes().vec();
  sizes.push_back(weight.size(1));
  return at::empty(sizes, weight.options());
}

struct EmbeddingGradient {
  at::Tensor weight;  // zeros
  at::Tensor order;   // positions of tokens
};
EmbeddingGradient embedding_backward_room(const at::Tensor& grad_out, const at::Tensor& tokens,
                                          std::int64_t rows) {
  at::Tensor weight = at::zeros({rows, grad_out.size(-1)}, grad_out.options());
  return {weight, at::empty({tokens.numel()}, tokens.options().dtype(at::kLong))};
}

// Calls use(pointer to tokens) for either of their types.
template <class Use>
void with_tokens(const at::Tensor& tokens, Use use) {
  if (tokens.scalar_type() == at::kInt) return use(tokens.const_data_ptr<std::int32_t>());
  use(tokens.const_data_ptr<std::int64_t>());
}

template <class Token>
void check_range(const Token* tokens, std::int64_t count, std::int64_t rows) {
  for (std::int64_t i = 0; i < count; ++i)
    check(tokens[i] >= 0 && tokens[i] < rows, "embedding: token ", tokens[i], " at position ", i,
          " is outside the table of ", rows, " rows");
}

at::Tensor embedding_cpu(const at::Tensor& weight, const at::Tensor& tokens) {
  at::Tensor out = looked_up_room(weight, tokens);
  const std::int64_t count = tokens.numel(), hidden = weight.size(1);
  with_tokens(tokens, [&](const auto* ids) {
    check_range(ids, count, weight.size(0));
    with_type("embedding", weight.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* table = weight.const_data_ptr<T>();
      T* to = out.mutable_data_ptr<T>();
      each_share(count, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i)
          std::copy_n(table + ids[i] * hidden, hidden, to + i * hidden);
      });
    });
  });
  return out;
}

// All tokens, for the columns [first, last): whoever takes them, each sum has the same order.
template <class T, class Token>
void add_columns(const T* grad_out, const Token* tokens, const std::int64_t* order, std::int64_t count,
                 T* grad_weight, std::int64_t hidden, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kColumns = 64;  // of a sum that stays in registers or next to them
  for (std::int64_t column = first; column < last; column += kColumns) {
    const std::int64_t width = std::min(kColumns, last - column);
    for (std::int64_t at = 0; at < count;) {
      const Token token = tokens[order[at]];
      at::opmath_type<T> sums[kColumns] = {};
      for (; at < count && tokens[order[at]] == token; ++at) {
        const T* from = grad_out + order[at] * hidden + column;
        for (std::int64_t i = 0; i < width; ++i) sums[i] += static_cast<at::opmath_type<T>>(from[i]);
      }
      T* to = grad_weight + token * hidden + column;
      for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(sums[i]);
    }
  }
}

at::Tensor embedding_backward_cpu(const at::Tensor& grad_out, const at::Tensor& tokens, std::int64_t rows) {
  const auto [grad_weight, order] = embedding_backward_room(grad_out, tokens, rows);
  const std::int64_t count = tokens.numel(), hidden = grad_out.size(-1);
  auto* positions = order.mutable_data_ptr<std::int64_t>();
  std::iota(positions, positions + count, std::int64_t{0});
  with_tokens(tokens, [&, &grad_weight = grad_weight](const auto* ids) {
    check_range(ids, count, rows);
    // Not stable_sort: its buffer would be memory that nobody counts.
    std::sort(positions, positions + count, [&](std::int64_t left, std::int64_t right) {
      return std::tuple(ids[left], left) < std::tuple(ids[right], right);
    });
    with_type("embedding", grad_out.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      const T* grads = grad_out.const_data_ptr<T>();
      T* to = grad_weight.template mutable_data_ptr<T>();
      each_share(hidden, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        add_columns(grads, ids, positions, count, to, hidden, first, last);
      });
    });
  });
  return grad_weight;
}

// What CUB's radix sort of pairs of 64 bits takes on Hopper; torch sorts few keys without it.
std::int64_t sort_bytes(std::int64_t count) {
  constexpr std::int64_t kFew = 4096, kTile = 4608, kAligned = 256, kBins = 256, kDigits = 8;
  if (count <= kFew) return 0;
  const std::int64_t buffer = (8 * count + kAligned - 1) / kAligned * kAligned;
  const std::int64_t tiles = (count + kTile - 1) / kTile;
  return 2 * buffer + 8 * kBins * kDigits + 4 * kBins * tiles + 2 * kAligned - 1;
}

// As embedding_cuda.cpp does.
at::Tensor embedding_backward_meta_of_cuda(const at::Tensor& grad_out, const at::Tensor& tokens,
                                           std::int64_t rows) {
  const std::int64_t count = tokens.numel(), hidden = grad_out.size(-1);
  at::Tensor weight = at::zeros({rows, hidden}, grad_out.options());
  at::Tensor sorted, order;
  {
    const at::Tensor unsorted = tokens.view({-1}).to(at::kLong);
    sorted = at::empty_like(unsorted);
    order = at::empty_like(unsorted);
    const at::Tensor positions = at::empty_like(unsorted);
    at::empty({sort_bytes(count)}, unsorted.options().dtype(at::kByte));
  }
  constexpr std::int64_t kChunk = 32;  // kEmbeddingChunk, whose header needs CUDA's
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  at::empty({chunks, 2, hidden}, grad_out.options().dtype(at::kFloat));
  return weight;
}

at::Tensor embedding_backward_meta(const at::Tensor& grad_out, const at::Tensor& tokens, std::int64_t rows) {
  if (hooks::meta_stands_for_cuda()) return embedding_backward_meta_of_cuda(grad_out, tokens, rows);
  return embedding_backward_room(grad_out, tokens, rows).weight;
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("embedding", TORCH_FN(embedding_cpu));
  library.impl("embedding_backward", TORCH_FN(embedding_backward_cpu));
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("embedding", TORCH_FN(looked_up_room));
  library.impl("embedding_backward", TORCH_FN(embedding_backward_meta));
}

}  // namespace
}  // namespace snug::ops
