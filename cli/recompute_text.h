// What train and profile say about recomputation.
#pragma once

#include <string>

#include "snug/base/json.h"
#include "snug/train/trainer.h"

namespace snug::cli {

std::string recompute_text(const train::TrainConfig& config,
                           const train::TrainResult& result);  // empty if all was kept
Json recompute_json(const train::TrainConfig& config, const train::TrainResult& result);

}  // namespace snug::cli
