// Random programs in which code writes into tensors past the dispatcher: through pointers, by kernels in
// Functions with and without mark_dirty(), on another thread, over what a Function saved, through from_blob,
// .data, set_ and views.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "snug/tape/fates.h"

namespace snug::tape {

// Plain autograd if there are no fates. `turn`: programs with branches go another way in each.
struct Outcome {
  std::vector<at::Tensor> results;  // loss and gradients
  std::string error;                // of forward or backward
};
Outcome run_foreign_program(std::uint64_t seed, c10::Device device, const Fates* fates, int turn);

// How programs fared under some fates, each for a few turns.
struct Tally {
  int runs = 0, equal = 0, refused = 0, plain_refused = 0;
  std::vector<std::string> wrong;    // silently
  std::vector<std::string> unnamed;  // errors that do not say what happened
};
Tally try_foreign_programs(std::uint64_t first, std::uint64_t count, c10::Device device);

}  // namespace snug::tape
