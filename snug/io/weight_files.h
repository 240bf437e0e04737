// The weights in a folder: model.safetensors, or several files that model.safetensors.index.json names, as
// Hugging Face has them, or those of a training state that ranks wrote together.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/stored_tensors.h"

namespace snug::io {

// Throws Error, which says what to give instead, for a file of weights and for the directory of a run.
SNUG_API void refuse_what_is_no_model(const std::filesystem::path& path);

// The file by which a folder's weights are found: model.safetensors, or what names several.
SNUG_API std::filesystem::path file_of_weights(const std::filesystem::path& folder);

// Throws Error for a folder without weights, a file that is missing, an index that names a tensor which is
// not where it says, and a tensor which it does not name.
SNUG_API StoredTensors open_weights(const std::filesystem::path& folder);

}  // namespace snug::io
