// open, fstat, mmap; the descriptor is not needed once the map stands.
#include "snug/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "snug/base/error.h"

namespace snug {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() { ::close(number); }
};

std::string cause() {
  return std::generic_category().message(errno);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) fail(path.string(), ": cannot open: ", cause());
  const Descriptor file{opened};

  struct stat status {};
  if (::fstat(file.number, &status) != 0)
    throw RunError(concat(path.string(), ": cannot examine: ", cause()));
  check(!S_ISDIR(status.st_mode), path.string(), ": is a folder, expected a file");
  check(S_ISREG(status.st_mode), path.string(), ": is not a regular file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses an empty range

  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data == MAP_FAILED) throw RunError(concat(path.string(), ": cannot map: ", cause()));
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::release(std::size_t first, std::size_t count) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (first + page - 1) / page * page, end = (first + count) / page * page;
  if (begin < end) ::madvise(static_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace snug
