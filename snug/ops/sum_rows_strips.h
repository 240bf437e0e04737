// How sum_rows shares out its work on CUDA; Meta takes as much memory. Internal to ops.
#pragma once

#include <algorithm>
#include <cstdint>

namespace snug::ops {

constexpr int kStripColumns = 256;  // of a block

// Parts of the rows, each summed by blocks of its own: enough for all processors, and several rows for each.
inline std::int64_t strips_of(std::int64_t rows, std::int64_t columns, int processors) {
  constexpr std::int64_t kBlocksPerProcessor = 8, kLeastRows = 8;
  const std::int64_t beside = (columns + kStripColumns - 1) / kStripColumns;
  const std::int64_t wanted = std::max<std::int64_t>(processors * kBlocksPerProcessor / beside, 1);
  return std::clamp<std::int64_t>(rows / kLeastRows, 1, wanted);
}

}  // namespace snug::ops
