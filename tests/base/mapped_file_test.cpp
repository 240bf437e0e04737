// Files mapped, and those that cannot be.
#include "snug/base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const TemporaryFolder folder;
  write_file(folder / "a", std::string("ab\0c", 4));
  const MappedFile file(folder / "a");
  const auto bytes = file.bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), std::string("ab\0c", 4));
  EXPECT_EQ(file.path(), folder / "a");
}

TEST(MappedFile, StaysReadableAfterTheFileIsRemoved) {
  const TemporaryFolder folder;
  write_file(folder / "a", std::string(10'000, 'x'));
  const MappedFile file(folder / "a");
  std::filesystem::remove(folder / "a");
  EXPECT_EQ(file.bytes()[9'999], std::byte{'x'});
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(MappedFile, RefusesWhatIsMissingAFolderOrAPipe) {
  const TemporaryFolder folder;
  const auto missing = (folder / "missing").string();
  EXPECT_EQ(message_of<Error>([&] { MappedFile file(missing); }),
            missing + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of<Error>([&] { MappedFile file(folder.path()); }),
            folder.path().string() + ": is a folder, expected a file");
  const auto pipe = (folder / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(message_of<Error>([&] { MappedFile file(pipe); }), pipe + ": is not a regular file");
}

}  // namespace
}  // namespace snug
