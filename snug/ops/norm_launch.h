// What the CUDA side of the norms checks and asks before it launches. Internal to ops.
#pragma once

#include <algorithm>
#include <limits>

#include "snug/ops/cuda_launch.h"

namespace snug::ops {

constexpr int kNormMostHidden = 32768;  // what a block holds in registers

inline std::int64_t norm_rows(const char* name, const at::Tensor& x) {
  const std::int64_t hidden = x.size(-1), rows = x.numel() / hidden;
  check(hidden <= kNormMostHidden, name, " on CUDA takes rows of at most ", kNormMostHidden,
        " elements, got ", hidden);
  check(rows <= std::numeric_limits<int>::max(), name, " on CUDA takes at most 2^31 - 1 rows, got ", rows);
  return rows;
}

// Of the backward, on the current device: each block makes one part of the weight's gradient.
// `per_processor`: as many as its registers hold of blocks that take rows of 2048.
inline int norm_backward_blocks(std::int64_t rows, int per_processor) {
  return static_cast<int>(std::min<std::int64_t>(rows, processors_of_current_device() * per_processor));
}

}  // namespace snug::ops
