// Attention on CUDA: cuDNN's or FlashAttention's kernels for 16-bit types, ATen's memory-efficient ones for
// fp32. The last two know windows. Torch's deterministic mode has a say in it, and must not change between
// forward and backward.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <tuple>

#include "snug/base/error.h"
#include "snug/ops/attention_blockwise.h"
#include "snug/ops/attention_layout.h"

namespace snug::ops {
namespace {

// On GPUs at which cuDNN was seen to be faster; a single token it does not take.
bool suits_cudnn(const at::Tensor& query, const at::Tensor& key) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, query.device().index()));
  return major >= 9 && head_suits_cudnn(query.size(3)) && query.size(2) > 1 && key.size(2) > 1 &&
         at::globalContext().userEnabledCuDNNSDP() && at::detail::getCUDAHooks().hasCuDNN() &&
         !at::globalContext().deterministicAlgorithms();
}

AttentionBackend backend_for(const at::Tensor& query, const at::Tensor& key, std::int64_t window,
                             std::int64_t asked) {
  const auto dtype = query.scalar_type();
  const std::string missing = missing_attention_kernel(at::kCUDA, dtype, query.size(3));
  check(missing.empty(), missing);
  const auto backend = static_cast<AttentionBackend>(asked);
  const bool is_half = dtype != at::kFloat;
  if (backend == AttentionBackend::Default)
    return !is_half                                 ? AttentionBackend::Efficient
           : window == 0 && suits_cudnn(query, key) ? AttentionBackend::CuDnn
                                                    : AttentionBackend::Flash;
  check(window == 0 || backend != AttentionBackend::CuDnn,
        "attention on CUDA: cuDNN's kernels know no window; ask for FlashAttention's");
  check(
      is_half == (backend != AttentionBackend::Efficient),
      "attention on CUDA: cuDNN and FlashAttention take 16-bit types, the memory-efficient kernels float32, "
      "got ",
      dtype);
  return backend;
}

// Generator state that the backward kernels ask for and, without dropout, never read.
struct UnusedRandomState {
  explicit UnusedRandomState(const at::Tensor& like, at::ScalarType dtype, bool pair)
      : seed(pair ? at::empty({2}, like.options().dtype(dtype)) : at::empty({}, like.options().dtype(dtype))),
        offset(at::empty({}, like.options().dtype(dtype))) {}
  at::Tensor seed, offset;
};

// The efficient kernels know no grouped queries: each key head is repeated for the queries that share it.
at::Tensor repeat_heads(const at::Tensor& tensor, std::int64_t heads) {
  auto kv_heads = tensor.size(1);
  if (kv_heads == heads) return tensor;
  return tensor.unsqueeze(2)
      .expand({-1, -1, heads / kv_heads, -1, -1})
      .reshape({tensor.size(0), heads, tensor.size(2), tensor.size(3)});
}

at::Tensor sum_heads(const at::Tensor& grad, std::int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

// What the operators above call; only these have a window. Tokens before heads in sizes.
constexpr std::int64_t kCausal = 1;  // of the efficient kernels: each query sees as many keys as its number

std::tuple<at::Tensor, at::Tensor> windowed(const at::Tensor& query, const at::Tensor& key,
                                            const at::Tensor& value, double scale, std::int64_t window,
                                            AttentionBackend backend) {
  const auto tokens = query.size(2), heads = query.size(1);
  const auto by_token = [](const at::Tensor& tensor) { return tensor.transpose(1, 2); };
  if (backend == AttentionBackend::Flash) {
    const auto result = at::_flash_attention_forward(
        by_token(query), by_token(key), by_token(value), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, tokens, tokens,
        /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale,
        /*window_size_left=*/window - 1, /*window_size_right=*/0);
    return {std::get<0>(result).transpose(1, 2), std::get<1>(result)};
  }
  const auto result = at::_efficient_attention_forward(
      by_token(query), by_token(repeat_heads(key, heads)), by_token(repeat_heads(value, heads)), /*bias=*/{},
      /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, /*max_seqlen_q=*/{}, /*max_seqlen_k=*/{}, /*dropout_p=*/0.0,
      kCausal, /*compute_log_sumexp=*/true, scale, /*seqlen_k=*/{}, window);
  return {std::get<0>(result).transpose(1, 2), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> windowed_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, double scale, std::int64_t window,
    AttentionBackend backend) {
  const auto tokens = query.size(2), heads = query.size(1);
  const auto by_token = [](const at::Tensor& tensor) { return tensor.transpose(1, 2); };
  if (backend == AttentionBackend::Flash) {
    const UnusedRandomState random(query, at::kUInt64, /*pair=*/true);
    const auto [grad_query, grad_key, grad_value] = at::_flash_attention_backward(
        by_token(grad_out), by_token(query), by_token(key), by_token(value), by_token(out), lse,
        /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, tokens, tokens, /*dropout_p=*/0.0, /*is_causal=*/true,
        random.seed, random.offset, scale, /*window_size_left=*/window - 1, /*window_size_right=*/0);
    return {grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2)};
  }
  const UnusedRandomState random(query, at::kLong, /*pair=*/false);
  const auto [grad_query, grad_key, grad_value, grad_bias] = at::_efficient_attention_backward(
      by_token(grad_out), by_token(query), by_token(repeat_heads(key, heads)),
      by_token(repeat_heads(value, heads)), /*bias=*/{}, by_token(out), /*cu_seqlens_q=*/{},
      /*cu_seqlens_k=*/{}, tokens, tokens, lse, /*dropout_p=*/0.0, random.seed, random.offset, kCausal,
      /*bias_requires_grad=*/false, scale, /*num_splits_key=*/{}, window);
  return {grad_query.transpose(1, 2), sum_heads(grad_key.transpose(1, 2), key.size(1)),
          sum_heads(grad_value.transpose(1, 2), key.size(1))};
}

std::tuple<at::Tensor, at::Tensor> attention_cuda(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value, bool causal, double scale,
                                                  std::int64_t window, std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise(query, key, value, causal, scale, window, *block);
  const AttentionBackend backend = backend_for(query, key, window, asked);
  if (backend == AttentionBackend::CuDnn) {
    auto result =
        at::_scaled_dot_product_cudnn_attention(in_order_of_tokens(query), key, value, /*attn_bias=*/{},
                                                /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, causal,
                                                /*return_debug_mask=*/false, scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  if (window > 0) return windowed(query, key, value, scale, window, backend);
  if (backend == AttentionBackend::Flash) {
    auto result = at::_scaled_dot_product_flash_attention(query, key, value, /*dropout_p=*/0.0, causal,
                                                          /*return_debug_mask=*/false, scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  auto heads = query.size(1);
  auto result =
      at::_scaled_dot_product_efficient_attention(query, repeat_heads(key, heads), repeat_heads(value, heads),
                                                  /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
                                                  /*dropout_p=*/0.0, causal, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_cuda(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    std::int64_t asked) {
  if (const auto block = keys_at_a_time(asked, key))
    return attention_blockwise_backward(grad_out, query, key, value, out, lse, causal, scale, window, *block);
  const AttentionBackend backend = backend_for(query, key, window, asked);
  if (backend == AttentionBackend::CuDnn) {
    UnusedRandomState random(query, at::kLong, /*pair=*/false);
    return at::_scaled_dot_product_cudnn_attention_backward(
        grad_out, query, key, value, out, lse, random.seed, random.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{},
        /*cum_seq_k=*/{}, query.size(2), key.size(2), /*dropout_p=*/0.0, causal, scale);
  }
  if (window > 0) return windowed_backward(grad_out, query, key, value, out, lse, scale, window, backend);
  if (backend == AttentionBackend::Flash) {
    UnusedRandomState random(query, at::kUInt64, /*pair=*/true);
    return at::_scaled_dot_product_flash_attention_backward(
        grad_out, query, key, value, out, lse, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, query.size(2), key.size(2),
        /*dropout_p=*/0.0, causal, random.seed, random.offset, scale);
  }
  UnusedRandomState random(query, at::kLong, /*pair=*/false);
  auto heads = query.size(1);
  auto [grad_query, grad_key, grad_value, grad_bias] = at::_scaled_dot_product_efficient_attention_backward(
      grad_out, query, repeat_heads(key, heads), repeat_heads(value, heads), /*attn_bias=*/{}, out, lse,
      random.seed, random.offset, /*dropout_p=*/0.0, /*grad_input_mask=*/{true, true, true, false}, causal,
      scale);
  return {grad_query, sum_heads(grad_key, key.size(1)), sum_heads(grad_value, key.size(1))};
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("attention", TORCH_FN(attention_cuda));
  library.impl("attention_backward", TORCH_FN(attention_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
