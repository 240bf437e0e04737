// A folder that appears whole or not at all: written under another name, brought to the disk, renamed.
//
//   UnfinishedFolder part("run/state/step-100");
//   write_to_disk(part.path() / "config.json", text);
//   part.finish();
#pragma once

#include <filesystem>
#include <string_view>

#include "snug/base/export.h"

namespace snug::io {

class SNUG_API UnfinishedFolder {
 public:
  // Throws RunError if it cannot be made. What a killed process left under the same name goes.
  explicit UnfinishedFolder(const std::filesystem::path& target);
  ~UnfinishedFolder();                                 // without finish() the folder goes
  UnfinishedFolder(const UnfinishedFolder&) = delete;  // it owns the folder
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  static std::filesystem::path path_of(const std::filesystem::path& target);  // meanwhile
  void finish();  // its files must be on the disk. Throws RunError if something is in the way

 private:
  std::filesystem::path target_, path_;
};

// A file of such a folder. Throws RunError if it cannot be written.
SNUG_API void write_to_disk(const std::filesystem::path& path, std::string_view text);

}  // namespace snug::io
