// The weights in a Hugging Face folder: model.safetensors, or several files that model.safetensors.index.json
// names.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "snug/base/export.h"
#include "snug/io/safetensors.h"

namespace snug::io {

// Throws Error, which says what to give instead, for a file of weights and for the directory of a run.
SNUG_API void refuse_what_is_no_model(const std::filesystem::path& path);

// The file by which a folder's weights are found: model.safetensors or the index of several.
SNUG_API std::filesystem::path file_of_weights(const std::filesystem::path& folder);

class SNUG_API WeightFiles {
 public:
  // Throws Error for a folder without weights, a file that is missing, an index that names a tensor which is
  // not where it says, and a tensor which it does not name.
  explicit WeightFiles(const std::filesystem::path& folder);

  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
};

}  // namespace snug::io
