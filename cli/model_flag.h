// What several verbs do about --model: read its config.json, and say what they passed over in it.
#pragma once

#include <string>
#include <vector>

#include "snug/models/config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace snug::cli {

void add_ignore_keys(CLI::App& verb, std::vector<std::string>& keys);

// `says`: what was passed over, in a line on standard error; one of several ranks is enough.
models::ModelConfig load_model_config(const std::string& model, const std::vector<std::string>& ignore_keys,
                                      bool says = true);

}  // namespace snug::cli
