// What makes a model slow on a GPU for no more than its sizes.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/models/config.h"

namespace snug::models {

// One sentence each, with what would mend it. A vocabulary is no matter: the loss pads it.
SNUG_API std::vector<std::string> slow_sizes(const ModelConfig& config, at::ScalarType dtype);

}  // namespace snug::models
