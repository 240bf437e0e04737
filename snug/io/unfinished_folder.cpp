#include "snug/io/unfinished_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "snug/base/error.h"
#include "snug/base/output_file.h"

namespace snug::io {
namespace fs = std::filesystem;

namespace {

// Its names are on the disk then. Some file systems have nothing to bring there, and say EINVAL.
void sync_folder(const fs::path& folder) {
  const int opened = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = opened >= 0 && (::fsync(opened) == 0 || errno == EINVAL);
  const int error = errno;
  if (opened >= 0) ::close(opened);
  if (!synced)
    throw RunError(
        concat(folder.string(), ": cannot be flushed to the disk: ", std::generic_category().message(error)));
}

}  // namespace

UnfinishedFolder::UnfinishedFolder(const fs::path& target) : target_(target), path_(path_of(target)) {
  std::error_code error;
  fs::remove_all(path_, error);
  fs::create_directories(path_, error);
  if (error) throw RunError(concat(path_.string(), ": cannot make this folder: ", error.message()));
}

fs::path UnfinishedFolder::path_of(const fs::path& target) {
  return target.parent_path() / ("." + target.filename().string() + ".part");
}

UnfinishedFolder::~UnfinishedFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void UnfinishedFolder::finish() {
  sync_folder(path_);
  std::error_code error;
  fs::rename(path_, target_, error);
  if (error) throw RunError(concat(target_.string(), ": cannot make this folder: ", error.message()));
  path_.clear();
  const fs::path parent = target_.parent_path();
  sync_folder(parent);
  if (!parent.empty()) sync_folder(parent.parent_path());  // the parent may be new, too
}

void write_to_disk(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.sync();
  file.close();
}

}  // namespace snug::io
