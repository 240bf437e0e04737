// A file being written: every failed write is a RunError that names the file and the cause.
//
//   OutputFile file("trace.snug");
//   file.write(bytes);
//   file.close();
//
// Nothing half-written stays: without close() the destructor removes the file, or cuts one opened with Append
// back to what it held before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "snug/base/export.h"

namespace snug {

class SNUG_API OutputFile {
 public:
  enum class Mode { Replace, Append };
  // A path that cannot be opened is an Error, a full or broken device a RunError.
  explicit OutputFile(const std::filesystem::path& path, Mode mode = Mode::Replace);
  ~OutputFile();
  // Neither copied nor moved: it owns the descriptor and the right to remove the file.
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Unbuffered: a line written is in the file even if the process is killed.
  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  bool lock();   // until it is closed. False if another process holds it: then the file stays
  void keep();   // from here on the file stays even if close() is never reached (logs)
  void sync();   // until the bytes are on the disk; throws as write() does
  void close();  // throws RunError if the file system refuses what it took before
  const std::filesystem::path& path() const { return path_; }

 private:
  void discard() noexcept;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t device_ = 0;  // with the inode: which file this is, whatever the path comes to name
  std::uint64_t inode_ = 0;
  std::int64_t old_size_ = 0;  // bytes it held before Append
  bool kept_ = false;
};

// A file of this text, there whole or as it was before, whoever else reads or writes it.
SNUG_API void replace_file(const std::filesystem::path& path, std::string_view text);

}  // namespace snug
