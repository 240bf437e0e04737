// A step under a plan against the plain one: every value that is used in the backward has the bits it had
// when it was made, and so have all gradients.
#pragma once

#include <cstdint>

#include "snug/base/export.h"
#include "snug/train/config.h"

namespace snug::train {

struct Verified {
  std::uint64_t values = 0;  // compared by checksum, when made and when used
  std::uint64_t differing_values = 0;
  std::uint64_t tensors = 0;  // gradients compared bit by bit; 0: the plain step did not fit
  std::uint64_t differing_tensors = 0;
  double largest_difference = 0;  // of two gradients' elements

  bool equal() const { return differing_values == 0 && differing_tensors == 0; }
};

// The first batch of the data, with config.plan or config.recompute, at config's split of the batch.
SNUG_API Verified verify(const TrainConfig& config);

}  // namespace snug::train
