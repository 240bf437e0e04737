// Bytes of training states from the number of parameters: arithmetic, before there is a model.
//
//   StateBytes states = estimate_states({.parameters = 7'000'000'000});  // 28 + 28 + 56 GB
#pragma once

#include <cstdint>
#include <optional>

#include "snug/base/export.h"
#include "snug/train/config.h"

namespace snug::train {

using optim::Master;

struct EstimateRequest {
  std::uint64_t parameters = 0;
  Precision precision = Precision::Fp32;
  std::optional<Master> master;                    // default: Split for bf16, Fp32 for fp16, none for fp32
  OptimizerKind optimizer = OptimizerKind::AdamW;  // Sgd: without momentum
  std::int64_t zero_stage = 0;  // 1 shards the optimizer, 2 gradients too, 3 parameters too
  std::int64_t ranks = 1;
};

struct SNUG_API StateBytes {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;

  std::uint64_t total() const { return parameters + gradients + optimizer; }
};

// Of one parameter. Throws Error for a master that the precision has no use for.
SNUG_API StateBytes bytes_per_parameter(Precision precision, std::optional<Master> master,
                                        OptimizerKind optimizer);

// Of the rank that holds most: shards are whole parameters, rounded up.
SNUG_API StateBytes estimate_states(const EstimateRequest& request);

}  // namespace snug::train
