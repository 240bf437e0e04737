// Writes that no operator makes, as a kernel of someone's own does them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::tape {

// Elements [first, last) of a dense fp32 tensor, counted in its memory, times `factor`. No version moves. On
// CUDA on the current stream.
void raw_scale(const at::Tensor& tensor, float factor, std::int64_t first, std::int64_t last);
inline void raw_scale(const at::Tensor& tensor, float factor) {
  raw_scale(tensor, factor, 0, tensor.numel());
}

}  // namespace snug::tape
