// Small files beside a model's weights: its tokenizer, its generation settings, its licence. They go wherever
// the weights go.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace snug::io {

struct Companion {
  std::string name, bytes;
};

// Of a Hugging Face folder or a training state: files of up to 64 MiB, without what snug writes itself.
// Throws RunError if it cannot be listed, Error for a file that cannot be read.
SNUG_API std::vector<Companion> read_companions(const std::filesystem::path& folder);

}  // namespace snug::io
