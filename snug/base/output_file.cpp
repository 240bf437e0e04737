// Writes that never lose an error, and the removal of what was not finished.
#include "snug/base/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <system_error>

#include "snug/base/error.h"

namespace snug {
namespace {

// A path that cannot be opened is a caller's mistake; a device that fails is not.
bool is_device_failure(int error) {
  return error == ENOSPC || error == EDQUOT || error == EIO || error == EMFILE || error == ENFILE ||
         error == ENOMEM;
}

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Mode mode) : path_(path) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (mode == Mode::Append ? O_APPEND : O_TRUNC);
  do {
    descriptor_ = ::open(path.c_str(), flags, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    const int error = errno;
    const std::string message =
        concat(path.string(), ": cannot write: ", std::generic_category().message(error));
    if (is_device_failure(error)) throw RunError(message);
    throw Error(message);
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  old_size_ = status.st_size;
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!kept_) discard();
}

void OutputFile::write(std::string_view bytes) {
  ensure(descriptor_ >= 0, path_.string(), " was written to after close()");
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      throw RunError(concat(path_.string(), ": cannot write: ", std::generic_category().message(error)));
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

bool OutputFile::lock() {
  const bool is_ours = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (!is_ours) keep();
  return is_ours;
}

void OutputFile::keep() {
  kept_ = true;
}

// A device or a pipe has no disk below it, and says EINVAL.
void OutputFile::sync() {
  if (::fsync(descriptor_) == 0 || errno == EINVAL || errno == EROFS) return;
  throw RunError(concat(path_.string(), ": cannot write: ", std::generic_category().message(errno)));
}

void OutputFile::close() {
  ensure(descriptor_ >= 0, path_.string(), " was closed twice");
  // After EINTR Linux has closed the descriptor all the same; closing again could hit another thread's file.
  const bool failed = ::close(descriptor_) != 0 && errno != EINTR;
  const int error = errno;
  descriptor_ = -1;
  if (!failed) return;
  if (!kept_) discard();
  throw RunError(concat(path_.string(), ": cannot write: ", std::generic_category().message(error)));
}

// Only a regular file that is still ours at this path is touched: never a device, a link or another's file.
void OutputFile::discard() noexcept {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (status.st_dev != device_ || status.st_ino != inode_) return;
  // A failure leaves bytes behind; a destructor has nobody to tell.
  [[maybe_unused]] const int ignored =
      old_size_ > 0 ? ::truncate(path_.c_str(), old_size_) : ::unlink(path_.c_str());
}

void replace_file(const std::filesystem::path& path, std::string_view text) {
  // Beside its place, under a name that no other process has, wherever it runs.
  const std::filesystem::path part =
      concat(path.string(), ".", ::getpid(), "-", std::random_device()(), ".part");
  OutputFile file(part);
  file.write(text);
  file.close();
  std::error_code error, gone;
  std::filesystem::rename(part, path, error);
  if (error) std::filesystem::remove(part, gone);
  check(!error, path.string(), ": cannot write: ", error.message());
}

}  // namespace snug
