// Of a step that does not fit: one change of it each, planned, that does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/training_flags.h"
#include "snug/base/json.h"
#include "snug/plan/hardware.h"

namespace snug::cli {

struct Alternative {
  std::string flags;  // that make it, beside those that were given
  std::uint64_t peak_bytes = 0, host_bytes = 0;
  double seconds = 0, tokens_per_second = 0;  // a split of the batch that was not tried may be faster
};

// The first that fits of each kind: more host memory, gradients that are used at once, an optimizer without
// moments, half the bytes per weight, shorter sequences, a smaller preset of the same kind, more GPUs.
std::vector<Alternative> what_fits(const TrainingFlags& flags, const train::TrainConfig& config,
                                   std::uint64_t budget_bytes, const plan::Hardware& hardware);

// A line each; empty if there is none.
std::string text(const std::vector<Alternative>& alternatives);
Json to_json(const std::vector<Alternative>& alternatives);

}  // namespace snug::cli
