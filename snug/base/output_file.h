// A file being written: every failed write is a RunError that names the file and the cause ("no space left on device").
//
//   OutputFile file("trace.snug");
//   file.write(bytes);
//   file.close();                      // without it the destructor removes what was written: nothing half-written stays
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "snug/base/export.h"

namespace snug {

class SNUG_API OutputFile {
 public:
  enum class Mode { Replace, Append };
  explicit OutputFile(const std::filesystem::path& path, Mode mode = Mode::Replace);
  ~OutputFile();
  // Neither copied nor moved: it owns the descriptor and the right to remove the file.
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);  // unbuffered: a line written is a line on disk if the process is killed
  void write(std::span<const std::byte> bytes);
  void keep();                         // from here on the file stays even if close() is never reached (logs)
  void close();                        // throws RunError if the file system refuses what it took before
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool kept_ = false;
};

}  // namespace snug
