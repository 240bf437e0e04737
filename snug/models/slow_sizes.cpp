#include "snug/models/slow_sizes.h"

#include <fmt/format.h>

#include <cstdint>

#include "snug/ops/attention.h"
#include "snug/ops/product.h"

namespace snug::models {

std::vector<std::string> slow_sizes(const ModelConfig& config, at::ScalarType dtype) {
  const std::int64_t aligned = ops::kProductAlignment / static_cast<std::int64_t>(c10::elementSize(dtype));
  std::vector<std::string> slow;
  const auto look_at = [&](const char* name, std::int64_t size) {
    if (size % aligned == 0) return;
    slow.push_back(fmt::format(
        "{} {} is no multiple of {}: cuBLAS has only slow kernels for such products (a fifth of the speed on "
        "an H200); {} is one",
        name, size, aligned, (size / aligned + 1) * aligned));
  };
  look_at("hidden_size", config.hidden_size);
  look_at("intermediate_size", config.intermediate_size);
  look_at("num_heads * head_dim", config.num_heads * config.head_dim);
  if (config.num_kv_heads != config.num_heads)
    look_at("num_kv_heads * head_dim", config.num_kv_heads * config.head_dim);
  const bool has_kernel = ops::missing_attention_kernel(c10::kCUDA, dtype, config.head_dim).empty();
  if (at::isReducedFloatingType(dtype) && has_kernel && !ops::head_suits_cudnn(config.head_dim))
    slow.push_back(fmt::format(
        "head_dim {}: FlashAttention's kernels instead of cuDNN's, which are faster on Hopper and for heads "
        "of 64 and 128",
        config.head_dim));
  return slow;
}

}  // namespace snug::models
