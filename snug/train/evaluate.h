// The mean loss of a model on every whole window of token data; nothing is trained.
#pragma once

#include <cstdint>
#include <functional>

#include "snug/base/export.h"
#include "snug/train/config.h"

namespace snug::train {

struct Evaluation {
  double loss = 0;           // mean over all targets
  std::uint64_t tokens = 0;  // targets
};

// config.batch_size windows at a time; the last time what is left. Throws Error for data without an end.
SNUG_API Evaluation
evaluate(const TrainConfig& config,
         const std::function<void(std::uint64_t done, std::uint64_t windows)>& on_batch = {});

}  // namespace snug::train
