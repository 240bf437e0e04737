// Tensors in a safetensors file, mapped: opening reads the header alone, and a tensor is a view of the map.
//
//   SafetensorsFile file("model.safetensors");
//   for (const TensorEntry& entry : file.entries()) weight.copy_(file.tensor(entry));
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/mapped_file.h"
#include "snug/io/safetensors_header.h"

namespace snug::io {

class SNUG_API SafetensorsFile {
 public:
  // Throws Error for a file that is missing or not what safetensors must be.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorEntry>& entries() const { return header_.entries; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return file_->path(); }
  const TensorEntry* find(const std::string& name) const;  // null if there is none

  // On the CPU, for reading alone: writing to it ends the process. Holds the map, and is a view of it but for
  // a tensor whose address does not fit its dtype, which is copied.
  at::Tensor tensor(const TensorEntry& entry) const;

  // Its pages need not stay in RAM; read again, they come from the file again.
  void release(const TensorEntry& entry) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t> places_;  // in entries
};

}  // namespace snug::io
