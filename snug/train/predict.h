// What a run will need, from a step on Meta: seconds, and no memory to speak of, whatever the size of the
// model.
#pragma once

#include "snug/base/export.h"
#include "snug/capture/capture.h"
#include "snug/train/config.h"

namespace snug::train {

// Builds the model and its optimizer on Meta and runs `steps` steps there.
SNUG_API capture::Captured predict(const TrainConfig& config, std::int64_t steps = 2);

}  // namespace snug::train
