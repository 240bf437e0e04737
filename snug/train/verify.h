// A step under a plan against the plain one in the same micro-batches: every value that is used in the
// backward has the bits it had when it was made, and so have all gradients. Against the step in one piece
// they have another order of sums.
#pragma once

#include <cstdint>
#include <optional>

#include "snug/base/export.h"
#include "snug/train/config.h"

namespace snug::train {

struct Verified {
  std::uint64_t values = 0;  // compared by checksum, when made and when used
  std::uint64_t differing_values = 0;
  std::uint64_t tensors = 0;  // gradients compared bit by bit; 0: the plain step did not fit
  std::uint64_t differing_tensors = 0;
  double largest_difference = 0;  // of two gradients' elements
  std::int64_t micro_batches = 1;
  // From the step in one piece: the norm of the differences by that of the gradients. None if the batch is
  // not split, or that step did not fit.
  std::optional<double> unsplit_difference;

  bool equal() const { return differing_values == 0 && differing_tensors == 0; }
};

// The first batch of the data, with config.plan or config.recompute, at config's split of the batch.
SNUG_API Verified verify(const TrainConfig& config);

}  // namespace snug::train
