// Attention on the CPU: ATen's flash kernels, which take grouped queries in both directions, and masks.
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <tuple>

#include "snug/ops/attention_blockwise.h"
#include "snug/ops/attention_window.h"

namespace snug::ops {
namespace {

std::tuple<at::Tensor, at::Tensor> attention_cpu(const at::Tensor& query, const at::Tensor& key,
                                                 const at::Tensor& value, bool causal, double scale,
                                                 std::int64_t window, std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise(query, key, value, causal, scale, window, *block);
  const auto kernel = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::optional<at::Tensor>& mask) {
    return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0, causal && !mask, mask,
                                                           scale);
  };
  if (window > 0) return attention_windowed(query, key, value, window, kernel);
  return kernel(query, key, value, std::nullopt);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cpu(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise_backward(grad_out, query, key, value, out, lse, causal, scale, window, *block);
  const auto kernel = [&](const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const at::Tensor& o, const at::Tensor& l,
                          const std::optional<at::Tensor>& mask) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, o, l, /*dropout_p=*/0.0,
                                                                    causal && !mask, mask, scale);
  };
  if (window > 0) return attention_windowed_backward(grad_out, query, key, value, out, lse, window, kernel);
  return kernel(grad_out, query, key, value, out, lse, std::nullopt);
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("attention", TORCH_FN(attention_cpu));
  library.impl("attention_backward", TORCH_FN(attention_backward_cpu));
}

}  // namespace
}  // namespace snug::ops
