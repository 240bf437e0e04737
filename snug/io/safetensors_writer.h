// Writes a safetensors file, one tensor at a time: no more than one is in RAM beside its source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace snug::io {

// A tensor that is made when its turn comes, of the dtype and shape that it was announced with.
struct TensorSource {
  std::string name;
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor()> make;            // on any device
  std::function<void()> on_written = nullptr;  // its bytes are read no more

  std::uint64_t bytes() const;
};

SNUG_API TensorSource source_of(const std::string& name, const at::Tensor& tensor);

// Large elements first, then by name, so that every tensor is aligned and the file does not depend on the
// order given. Throws RunError if it cannot be written; nothing half-written stays. When it returns, the
// bytes are on the disk. Returns the checksum of the file.
SNUG_API std::string write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                                       const std::map<std::string, std::string>& metadata = {});

}  // namespace snug::io
