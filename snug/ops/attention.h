// Softmax attention whose memory grows with tokens, not tokens squared.
//
//   at::Tensor out = attention(query, key, value, {.causal = true});
//
// One dispatcher operator, snug::attention, with kernels for CPU, CUDA and Meta; its backward is an operator
// too. Listeners below autograd see one operation that returns all that its backward needs: (out, lse).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "snug/base/export.h"

namespace snug::ops {

// Whose kernels: they round differently. Default is the fastest that can do what is asked: on CUDA in 16 bits
// cuDNN's on Hopper and later, where they are about twice as fast as FlashAttention's, unless torch's
// deterministic mode is on; FlashAttention's else; ATen's memory-efficient ones in fp32. The CPU has one
// kind. The last two are plain operators that run everywhere, for head sizes and types without a kernel:
// slowly, or with memory that grows with tokens squared. They are never chosen, only asked for.
enum class AttentionBackend : std::int64_t { Default, Flash, CuDnn, Efficient, Blockwise, Quadratic };

struct AttentionOptions {
  bool causal = true;
  std::optional<double> scale = std::nullopt;  // default: 1 / sqrt(head_dim)
  std::int64_t window = 0;  // of causal attention: the last so many tokens, the query's own included; 0: all
  AttentionBackend backend = AttentionBackend::Default;
};

// query [batch, heads, tokens, head_dim]; key and value [batch, kv_heads, key_tokens, head_dim], where
// kv_heads divides heads (grouped queries). The last dimension must be contiguous. The result has query's
// sizes and lies in memory as [batch, tokens, heads, head_dim], so transpose(1, 2) followed by a view of the
// last two dimensions copies nothing.
SNUG_API at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              AttentionOptions options = {});

// Why there is no kernel for it on this kind of device, in a sentence; empty if there is one.
SNUG_API std::string missing_attention_kernel(c10::DeviceType device, at::ScalarType dtype,
                                              std::int64_t head_dim);

// Head sizes at which cuDNN was seen to be faster than FlashAttention, where it may be taken.
constexpr bool head_suits_cudnn(std::int64_t head_dim) {
  return head_dim == 64 || head_dim == 128;
}

// The operators themselves. lse, the logarithm of each softmax's sum, belongs to the kernel that made it: its
// layout differs between devices, and only attention_backward on the same device reads it.
SNUG_API std::tuple<at::Tensor, at::Tensor> attention_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                               const at::Tensor& value, bool causal,
                                                               double scale, std::int64_t window,
                                                               AttentionBackend backend);
SNUG_API std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    AttentionBackend backend);

}  // namespace snug::ops
