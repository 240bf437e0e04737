// Attention on the CPU: ATen's flash kernels, which take grouped queries in both directions.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <tuple>

#include "snug/ops/attention_blockwise.h"

namespace snug::ops {
namespace {

std::tuple<at::Tensor, at::Tensor> attention_cpu(const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, bool causal, double scale,
                                                 std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise(query, key, value, causal, scale, *block);
  return at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0.0, causal,
                                                         /*attn_mask=*/{}, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise_backward(grad_out, query, key, value, out, lse, causal, scale, *block);
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, lse,
                                                                  /*dropout_p=*/0.0, causal, /*attn_mask=*/{},
                                                                  scale);
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("attention", TORCH_FN(attention_cpu));
  library.impl("attention_backward", TORCH_FN(attention_backward_cpu));
}

}  // namespace
}  // namespace snug::ops
