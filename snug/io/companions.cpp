#include "snug/io/companions.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/base/mapped_file.h"
#include "snug/io/files_of_ranks.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t kLargest = 64_MiB;  // more is somebody's data

bool goes_along(const fs::directory_entry& entry) {
  std::error_code ignored;
  const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
  if (name.starts_with(".") || !entry.is_regular_file(ignored) || entry.file_size(ignored) > kLargest)
    return false;
  if (name == "config.json" || name == "state.json" || name == kShapes || name.ends_with(".index.json"))
    return false;
  constexpr std::array kExtensions = {".json", ".txt", ".model", ".jinja", ".md"};
  return name == "LICENSE" || std::ranges::find(kExtensions, extension) != kExtensions.end();
}

}  // namespace

std::vector<Companion> read_companions(const fs::path& folder) {
  std::vector<Companion> companions;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::directory_entry& entry = *at;
    if (!goes_along(entry)) continue;
    const MappedFile file(entry.path());
    companions.push_back({entry.path().filename().string(),
                          {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}});
  }
  if (error) throw RunError(concat(folder.string(), ": cannot be listed: ", error.message()));
  std::ranges::sort(companions, {}, &Companion::name);
  return companions;
}

}  // namespace snug::io
