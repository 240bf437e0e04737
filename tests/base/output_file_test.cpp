// What stays on disk, and what a full one says.
#include "snug/base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "snug/base/error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

using testing::FileSizeLimit;
using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

class OutputFileTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "out";
};

TEST_F(OutputFileTest, AClosedFileHoldsWhatWasWritten) {
  write_file(path_, "something longer than the new contents");
  OutputFile file(path_);
  file.write("ab");
  const std::byte bytes[] = {std::byte{0}, std::byte{255}};
  file.write(bytes);
  EXPECT_EQ(read_file(path_).size(), 4u);  // unbuffered: there before close
  file.close();
  EXPECT_EQ(read_file(path_), std::string("ab\0\xff", 4));
}

TEST_F(OutputFileTest, StaysAfterCloseAndGoesWithoutIt) {
  {
    OutputFile file(path_);
    file.write("x");
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  {
    OutputFile file(path_);
    file.close();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(OutputFileTest, AKeptFileStaysWithoutClose) {
  {
    OutputFile file(path_);
    file.keep();
    file.write("line\n");
  }
  EXPECT_EQ(read_file(path_), "line\n");
}

TEST_F(OutputFileTest, AppendsAndWithoutCloseRestoresWhatWasThere) {
  write_file(path_, "old\n");
  {
    OutputFile file(path_, OutputFile::Mode::Append);
    file.write("new\n");
    EXPECT_EQ(read_file(path_), "old\nnew\n");
  }
  EXPECT_EQ(read_file(path_), "old\n");
  OutputFile file(path_, OutputFile::Mode::Append);
  file.write("new\n");
  file.close();
  EXPECT_EQ(read_file(path_), "old\nnew\n");
}

TEST_F(OutputFileTest, AppendingMakesAMissingFile) {
  OutputFile file(path_, OutputFile::Mode::Append);
  file.write("a");
  file.close();
  EXPECT_EQ(read_file(path_), "a");
}

TEST_F(OutputFileTest, RemovesNeitherAnothersFileNorALinkNorADevice) {
  {
    OutputFile file(path_);
    std::filesystem::remove(path_);
    write_file(path_, "another's");
  }
  EXPECT_EQ(read_file(path_), "another's");
  std::filesystem::create_symlink("/dev/null", folder_ / "link");
  { OutputFile file(folder_ / "link"); }
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  const auto pipe = folder_ / "pipe";  // stands for a device: broken code must not reach a real one from here
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);  // without one, opening it to write waits
  ASSERT_GE(reader, 0);
  { OutputFile file(pipe); }
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(OutputFileTest, APathThatCannotBeOpenedIsTheCallersMistake) {
  const auto inside_missing = (folder_ / "missing/out").string();
  try {
    OutputFile file(inside_missing);
    FAIL() << "nothing was thrown";
  } catch (const RunError& error) {
    FAIL() << "a failed run: " << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), inside_missing + ": cannot write: No such file or directory");
  }
  EXPECT_EQ(message_of<Error>([&] { OutputFile file(folder_.path()); }),
            folder_.path().string() + ": cannot write: Is a directory");
}

TEST_F(OutputFileTest, AFullDeviceIsAFailedRunThatNamesTheFile) {
  std::filesystem::create_symlink("/dev/full", path_);  // a link: broken code must not remove the device
  OutputFile file(path_);
  EXPECT_EQ(message_of<RunError>([&] { file.write("x"); }),
            path_.string() + ": cannot write: No space left on device");
}

TEST_F(OutputFileTest, AFileThatCannotGrowIsAFailedRunAndIsRemoved) {
  {
    OutputFile file(path_);
    const FileSizeLimit limit(1'000);
    file.write(std::string(600, 'a'));
    EXPECT_EQ(message_of<RunError>([&] { file.write(std::string(600, 'b')); }),
              path_.string() + ": cannot write: File too large");
    EXPECT_EQ(std::filesystem::file_size(path_), 1'000u);  // the short write before the refusal
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(OutputFileTest, UseAfterCloseIsABug) {
  OutputFile file(path_);
  file.close();
  EXPECT_THROW(file.write("x"), InternalError);
  EXPECT_THROW(file.close(), InternalError);
}

}  // namespace
}  // namespace snug
