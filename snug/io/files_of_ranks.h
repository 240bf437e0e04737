// A training state that several ranks wrote together, each its pieces of every tensor:
//
//   step-100/model-rank-0-of-2.safetensors, model-rank-1-of-2.safetensors, optimizer-rank-...
//            shapes.json          how many ranks there were, and the shapes of the whole tensors
//
// Internal to io.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "snug/base/json.h"
#include "snug/io/stored_tensors.h"

namespace snug::io {

inline constexpr const char* kShapes = "shapes.json";

std::string file_of_rank(std::string_view stem, int rank, int ranks);  // "model-rank-0-of-2.safetensors"
bool is_written_by_ranks(const std::filesystem::path& folder);
bool is_file_of_ranks(const std::string& name);

Json shapes_json(int ranks, const StoredTensors::Shapes& model, const StoredTensors::Shapes& optimizer);
StoredTensors open_model_of_ranks(const std::filesystem::path& folder);
StoredTensors open_optimizer_of_ranks(const std::filesystem::path& folder);

}  // namespace snug::io
