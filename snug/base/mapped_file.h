// A file mapped read-only: no copy in RAM, unmapped when the last owner goes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "snug/base/export.h"

namespace snug {

class SNUG_API MappedFile {
 public:
  // Throws Error if the file is missing, a folder or unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  // Neither copied nor moved: views into the map hold its address. Share it by shared_ptr.
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

  // The whole pages among these bytes may leave RAM; read again, they come from the file again.
  void release(std::size_t first, std::size_t count) const;

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace snug
