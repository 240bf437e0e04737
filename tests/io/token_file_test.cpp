#include "snug/io/token_file.h"

#include <gtest/gtest.h>

#include <vector>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/io/token_file_writer.h"

namespace snug::io {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using testing::token_file;
using testing::uint16_file;
using testing::uint32_file;
using testing::write;

std::vector<std::int64_t> read_all(const TokenFile& file) {
  std::vector<std::int64_t> out(file.size());
  file.read(0, out);
  return out;
}

TEST(TokenFile, ReadsUint16Tokens) {
  TemporaryFolder folder;
  const TokenFile file(write(folder, "a.bin", uint16_file({1, 50256, 3, 65535})), 65536);
  EXPECT_EQ(read_all(file), (std::vector<std::int64_t>{1, 50256, 3, 65535}));
  EXPECT_FALSE(file.is_text());
  file.check_vocabulary();
}

TEST(TokenFile, ReadsUint32Tokens) {
  TemporaryFolder folder;
  const TokenFile file(write(folder, "a.bin", uint32_file({7, 128255, 0})), 128256);
  EXPECT_EQ(read_all(file), (std::vector<std::int64_t>{7, 128255, 0}));
  file.check_vocabulary();
}

TEST(TokenFile, ReadsTheBytesOfText) {
  TemporaryFolder folder;
  const TokenFile file(write(folder, "a.txt", "az\xff"), 256);
  EXPECT_EQ(read_all(file), (std::vector<std::int64_t>{97, 122, 255}));
  EXPECT_TRUE(file.is_text());
  file.check_vocabulary();
}

TEST(TokenFile, NamesAPathThatIsNotThere) {
  TemporaryFolder folder;
  const std::string path = (folder.path() / "none.bin").string();
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
            path + ": No such file or directory; expected 'synthetic', a token file (*.bin) or a text file");
}

TEST(TokenFile, RefusesAFolder) {
  TemporaryFolder folder;
  EXPECT_EQ(
      message_of<Error>([&] { TokenFile(folder.path(), 256); }),
      folder.path().string() + ": is a folder; expected 'synthetic', a token file (*.bin) or a text file");
}

TEST(TokenFile, RefusesADevice) {
  EXPECT_EQ(message_of<Error>([] { TokenFile("/dev/null", 256); }),
            "/dev/null: is not a regular file; expected 'synthetic', a token file (*.bin) or a text file");
}

TEST(TokenFile, RefusesAnEmptyText) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.txt", "");
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }), path + ": expected text, got an empty file");
}

TEST(TokenFile, RefusesAFileShorterThanItsHeader) {
  TemporaryFolder folder;
  for (std::size_t bytes : {0, 3, 1023}) {
    const std::string path = write(folder, "a.bin", std::string(bytes, 'x'));
    EXPECT_EQ(
        message_of<Error>([&] { TokenFile(path, 256); }),
        concat(path, ": expected a token file with a header of 1024 bytes, got a file of ", bytes, " bytes"));
  }
}

TEST(TokenFile, RefusesAnotherMagic) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.bin", token_file<std::uint16_t>(20240326, 1, 2, {1, 2}));
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
            path + ": expected magic 20240520 (uint16 tokens) or 20240801 (uint32 tokens), got 20240326");
}

TEST(TokenFile, RefusesAnotherVersion) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.bin", token_file<std::uint32_t>(20240801, 1, 2, {1, 2}));
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
            path + ": expected version 7 with magic 20240801, got 1");
}

TEST(TokenFile, RefusesAHeaderWithoutTokens) {
  TemporaryFolder folder;
  for (int count : {0, -5}) {
    const std::string path = write(folder, "a.bin", token_file<std::uint16_t>(20240520, 1, count, {}));
    EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
              concat(path, ": expected a header with at least 1 token, got ", count));
  }
}

TEST(TokenFile, RefusesAFileThatIsCutShort) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.bin", token_file<std::uint16_t>(20240520, 1, 4, {1, 2, 3}));
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
            path + ": its header says 4 tokens, expected 1032 bytes, got 1030: the file is cut short");
}

TEST(TokenFile, RefusesAFileThatIsTooLong) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.bin", uint16_file({1, 2, 3}) + "x");
  EXPECT_EQ(message_of<Error>([&] { TokenFile(path, 256); }),
            path + ": its header says 3 tokens, expected 1030 bytes, got 1031: the file is too long");
}

TEST(TokenFile, NamesTheFirstTokenOutsideTheVocabulary) {
  TemporaryFolder folder;
  std::vector<std::uint16_t> tokens(200000, 7);
  tokens[150000] = 256;
  tokens[160000] = 300;
  const std::string path = write(folder, "a.bin", uint16_file(tokens));
  const TokenFile file(path, 256);
  const std::string message =
      path + ": expected tokens below the vocabulary size 256, got 256 at position 150000";
  EXPECT_EQ(message_of<Error>([&] { file.check_vocabulary(); }), message);
  std::vector<std::int64_t> out(10);
  file.read(149990, out);
  EXPECT_EQ(message_of<Error>([&] { file.read(149991, out); }), message);
}

TEST(TokenFile, ChecksTextAgainstASmallVocabulary) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.txt", "abc");
  const TokenFile file(path, 99);
  EXPECT_EQ(message_of<Error>([&] { file.check_vocabulary(); }),
            path + ": expected tokens below the vocabulary size 99, got 99 at position 2");
}

TEST(TokenFile, ChecksUint32Tokens) {
  TemporaryFolder folder;
  const std::string path = write(folder, "a.bin", uint32_file({1, 4294967295u}));
  const TokenFile file(path, 128256);
  EXPECT_EQ(message_of<Error>([&] { file.check_vocabulary(); }),
            path + ": expected tokens below the vocabulary size 128256, got 4294967295 at position 1");
}

TEST(TokenFile, NeedsAVocabulary) {
  EXPECT_EQ(message_of<Error>([] { TokenFile("a.bin", 0); }),
            "a token file needs a vocabulary of at least 1, got 0");
}

}  // namespace
}  // namespace snug::io
