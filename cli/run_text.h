// What train says about a run: before it, after it, and as JSON.
#pragma once

#include <filesystem>
#include <string>

#include "snug/base/json.h"
#include "snug/train/trainer.h"

namespace snug::cli {

// `weights`: the folder that they come from; empty for fresh ones. `group`: null for one that trains by
// itself.
std::string heading(const train::TrainConfig& config, const std::filesystem::path& weights,
                    const std::filesystem::path& out_dir, const zero::Group* group);
std::string prediction(const train::TrainConfig& config, const trace::Snapshot& peak);
std::string summary(const train::TrainConfig& config, const train::TrainResult& result,
                    const std::filesystem::path& out_dir);
Json document(const train::TrainConfig& config, const train::TrainResult& result,
              const std::filesystem::path& out_dir);

}  // namespace snug::cli
