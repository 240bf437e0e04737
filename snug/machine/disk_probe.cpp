#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <system_error>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/machine/host_probe.h"
#include "snug/machine/probe_clock.h"

namespace snug::machine {
namespace {

constexpr std::size_t kBlock = 4_MiB;
constexpr std::size_t kAlignment = 4096;  // what O_DIRECT asks of memory, sizes and places

std::string reason() {
  return std::generic_category().message(errno);
}

// Open and without a name.
class ScratchFile {
 public:
  explicit ScratchFile(const std::filesystem::path& folder)
      : path_((folder / ("snug-probe-" + std::to_string(::getpid()))).string()) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    descriptor_ = ::open(path_.c_str(), flags | O_DIRECT, 0600);
    if (descriptor_ < 0 && errno == EINVAL) {  // some file systems make the file and then refuse
      ::unlink(path_.c_str());
      descriptor_ = ::open(path_.c_str(), flags, 0600);
    }
    check(descriptor_ >= 0, path_, ": cannot write: ", reason());
    ::unlink(path_.c_str());
  }
  ~ScratchFile() { ::close(descriptor_); }
  ScratchFile(const ScratchFile&) = delete;  // it owns the descriptor
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(const void* block, std::size_t bytes) {
    ssize_t written = ::write(descriptor_, block, bytes);
    if (written < 0 && errno == EINVAL) {  // others refuse only now
      ::fcntl(descriptor_, F_SETFL, 0);
      written = ::write(descriptor_, block, bytes);
    }
    if (written != static_cast<ssize_t>(bytes)) failed("write", written);
  }
  void read(void* block, std::size_t bytes) {
    const ssize_t got = ::read(descriptor_, block, bytes);
    if (got != static_cast<ssize_t>(bytes)) failed("read", got);
  }
  void sync() {
    if (::fdatasync(descriptor_) != 0) failed("write", -1);
  }
  // From the start, and from the disk.
  void rewind() {
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
    ::lseek(descriptor_, 0, SEEK_SET);
  }

 private:
  [[noreturn]] void failed(const char* what, ssize_t done) {
    if (done >= 0) errno = ENOSPC;  // part of a block: there is no room for the rest
    throw RunError(concat(path_, ": cannot ", what, ": ", reason()));
  }

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

double disk_rate(const std::filesystem::path& folder, std::uint64_t bytes, double most_seconds) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kAlignment, kBlock), &std::free);
  if (!block) throw std::bad_alloc();
  std::mt19937_64 random;  // some disks compress
  for (std::size_t i = 0; i < kBlock; i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = random();
    std::memcpy(static_cast<char*>(block.get()) + i, &bits, sizeof bits);
  }
  ScratchFile file(folder);
  const Stopwatch writing;
  std::uint64_t written = 0;
  do {
    file.write(block.get(), kBlock);
    written += kBlock;
  } while (written < bytes && writing.seconds() < most_seconds);
  file.sync();
  const double write_seconds = writing.seconds();
  file.rewind();
  const Stopwatch reading;
  std::uint64_t read = 0;
  do {
    file.read(block.get(), kBlock);
    read += kBlock;
  } while (read < written && reading.seconds() < most_seconds);
  return static_cast<double>(written + read) / (write_seconds + reading.seconds());
}

}  // namespace snug::machine
