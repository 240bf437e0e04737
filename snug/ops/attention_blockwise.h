// Attention in plain operators, a block of keys at a time: how the kernels work, for reading and for checking
// them, and for head sizes and types that have none. Runs on every device. Internal to ops.
//
// The softmax of a row needs the row's largest score and its sum, which are known only at its end. So both
// are kept as of the blocks seen so far, with the weighted sum of values beside them; when a block brings a
// larger score, what was summed is scaled down to it (Milakov and Gimelshein 2018; Dao et al. 2022). Of all
// tokens x tokens scores there is only one block's worth at a time. The backward recomputes them, block by
// block: with the logarithm of each row's sum at hand a probability is one exponential.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "snug/ops/attention.h"

namespace snug::ops {

// Whether the operator was asked for plain operators, and for how many keys at a time.
inline std::optional<std::int64_t> keys_at_a_time(std::int64_t backend, const at::Tensor& key) {
  constexpr std::int64_t kBlock = 512;
  switch (static_cast<AttentionBackend>(backend)) {
    case AttentionBackend::Blockwise:
      return kBlock;
    case AttentionBackend::Quadratic:
      return key.size(2);
    default:
      return std::nullopt;
  }
}

// All keys at a time is attention as the textbook has it, quadratic in memory.
std::tuple<at::Tensor, at::Tensor> attention_blockwise(const at::Tensor& query, const at::Tensor& key,
                                                       const at::Tensor& value, bool causal, double scale,
                                                       std::int64_t window, std::int64_t block_size);

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_blockwise_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    std::int64_t block_size);

}  // namespace snug::ops
