// Attention to the last tokens only, by kernels that know masks and no windows: queries are taken a few
// hundred at a time, each lot with the keys that one of its queries may see. So time and memory grow with
// tokens times window, never with tokens squared. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <tuple>

namespace snug::ops {

// A kernel as it is called for one lot; the mask [queries, keys] is added to the scores. It returns (out,
// lse).
using MaskedAttention = c10::function_ref<std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask)>;
// The same of grad_out, query, key, value, out, lse and mask; it returns the gradients of the first three
// inputs.
using MaskedAttentionBackward = c10::function_ref<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& mask)>;

// Causal, with 0 < window < tokens. Results lie in memory by token, as those of the kernels do.
std::tuple<at::Tensor, at::Tensor> attention_windowed(const at::Tensor& query, const at::Tensor& key,
                                                      const at::Tensor& value, std::int64_t window,
                                                      MaskedAttention kernel);

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_windowed_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, std::int64_t window, MaskedAttentionBackward kernel);

}  // namespace snug::ops
