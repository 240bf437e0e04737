// Models by name: sizes only, their weights are fresh.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/export.h"
#include "snug/models/config.h"

namespace snug::models {

SNUG_API std::optional<ModelConfig> find_preset(std::string_view name);
SNUG_API std::vector<std::string> presets();  // their names
SNUG_API std::string preset_names();          // "tiny, llama-1.3b, ...", for messages and help

}  // namespace snug::models
