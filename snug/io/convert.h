// The weights of one folder into another: in other shards, in another dtype, one tensor at a time.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "snug/base/export.h"

namespace snug::io {

struct ConvertOptions {
  std::optional<c10::ScalarType> dtype = {};  // of all floating tensors; none: as they are
  std::uint64_t shard_bytes = 5'000'000'000;  // a file holds at most so many, or one tensor
  const std::atomic<bool>* stop = nullptr;    // asked before every tensor: then RunError, and nothing is left
  std::function<void(std::size_t done, std::size_t tensors)> on_tensor = {};
};

struct Converted {
  std::size_t tensors = 0, files = 0;
  std::uint64_t bytes = 0;
};

// From a Hugging Face folder or a training state; `to` must not be there, and appears whole or not at all.
// Of a training state, whose checksums must be right, only the model goes along; as fp32 it has all bits that
// its optimizer knows.
// config.json is told the new dtype, and its companions are copied.
SNUG_API Converted convert_weights(const std::filesystem::path& from, const std::filesystem::path& to,
                                   const ConvertOptions& options = {});

}  // namespace snug::io
