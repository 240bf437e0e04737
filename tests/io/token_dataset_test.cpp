#include "snug/io/token_dataset.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <numeric>
#include <set>
#include <vector>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/io/token_file_writer.h"

namespace snug::io {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using testing::uint16_file;
using testing::write;

// A file whose token at position p is p: a window shows where it was read.
std::string counting_file(const TemporaryFolder& folder, std::size_t tokens) {
  std::vector<std::uint16_t> values(tokens);
  std::iota(values.begin(), values.end(), 0);
  return write(folder, "counting.bin", uint16_file(values));
}

// The window numbers of a counting file that a batch holds, in order.
std::vector<std::int64_t> windows_of(const Batch& batch) {
  const auto first = batch.tokens.select(1, 0).contiguous();
  std::vector<std::int64_t> windows;
  for (std::int64_t row = 0; row < first.size(0); ++row) {
    windows.push_back(first.data_ptr<std::int64_t>()[row] / batch.tokens.size(1));
  }
  return windows;
}

TEST(TokenDataset, WindowsFollowEachOtherAndTargetsAreShiftedByOne) {
  TemporaryFolder folder;
  const auto data = TokenDataset::open(counting_file(folder, 13), {.vocab_size = 100, .seq_len = 4});
  EXPECT_EQ(data.windows(), 3u);
  const Batch batch = data.batch(1, 2);
  const auto expected = at::arange(4, 12, at::kLong).view({2, 4});
  EXPECT_TRUE(at::equal(batch.tokens, expected));
  EXPECT_TRUE(at::equal(batch.targets, expected + 1));
}

TEST(TokenDataset, CountsOnlyWholeWindows) {
  TemporaryFolder folder;
  const auto windows = [&](std::size_t tokens) {
    return TokenDataset::open(counting_file(folder, tokens), {.vocab_size = 100, .seq_len = 4}).windows();
  };
  EXPECT_EQ(windows(5), 1u);
  EXPECT_EQ(windows(8), 1u);
  EXPECT_EQ(windows(9), 2u);
}

TEST(TokenDataset, WrapsAroundInFileOrder) {
  TemporaryFolder folder;
  const auto data = TokenDataset::open(counting_file(folder, 13), {.vocab_size = 100, .seq_len = 4});
  EXPECT_EQ(windows_of(data.batch(2, 5)), (std::vector<std::int64_t>{2, 0, 1, 2, 0}));
  EXPECT_TRUE(at::equal(data.batch(0, 3).tokens, data.batch(3000000, 3).tokens));
}

TEST(TokenDataset, ShuffledEpochsHoldEveryWindowOnce) {
  TemporaryFolder folder;
  for (std::int64_t windows : {1, 2, 3, 7, 16, 17, 100, 255}) {
    const auto path = counting_file(folder, static_cast<std::size_t>(windows) * 2 + 1);
    const auto data = TokenDataset::open(path, {.vocab_size = 1000, .seq_len = 2, .shuffle_seed = 11});
    for (std::int64_t epoch : {0, 1, 5}) {
      const auto seen = windows_of(data.batch(static_cast<std::uint64_t>(epoch * windows), windows));
      EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), static_cast<std::size_t>(windows));
    }
  }
}

TEST(TokenDataset, ShufflesDifferentlyByEpochAndSeed) {
  TemporaryFolder folder;
  const auto path = counting_file(folder, 101);
  const auto open = [&](std::uint64_t seed) {
    return TokenDataset::open(path, {.vocab_size = 1000, .seq_len = 2, .shuffle_seed = seed});
  };
  const auto first = windows_of(open(1).batch(0, 50));
  EXPECT_EQ(first, windows_of(open(1).batch(0, 50)));
  EXPECT_NE(first, windows_of(open(1).batch(50, 50)));
  EXPECT_NE(first, windows_of(open(2).batch(0, 50)));
}

TEST(TokenDataset, OneBatchEqualsItsPartsAcrossEpochs) {
  TemporaryFolder folder;
  const auto data =
      TokenDataset::open(counting_file(folder, 21), {.vocab_size = 100, .seq_len = 2, .shuffle_seed = 3});
  const Batch whole = data.batch(7, 8);
  EXPECT_TRUE(at::equal(whole.tokens, at::cat({data.batch(7, 3).tokens, data.batch(10, 5).tokens})));
  EXPECT_TRUE(at::equal(whole.targets, at::cat({data.batch(7, 3).targets, data.batch(10, 5).targets})));
}

TEST(TokenDataset, SyntheticTokensNeverEnd) {
  const auto data = TokenDataset::open("synthetic", {.vocab_size = 256, .seq_len = 8, .seed = 5});
  EXPECT_EQ(data.windows(), TokenDataset::kUnlimited);
  const Batch batch = data.batch(1000000000, 2);
  EXPECT_TRUE(at::equal(batch.tokens.slice(1, 1), batch.targets.slice(1, 0, 7)));
  EXPECT_TRUE(at::equal(batch.targets[0][7], batch.tokens[1][0]));
  EXPECT_FALSE(at::equal(batch.tokens, data.batch(0, 2).tokens));
  data.check_vocabulary();
}

TEST(TokenDataset, KnowsText) {
  TemporaryFolder folder;
  const OpenOptions options{.vocab_size = 256, .seq_len = 2};
  EXPECT_TRUE(TokenDataset::open(write(folder, "a.txt", "hello"), options).is_text());
  EXPECT_FALSE(TokenDataset::open(counting_file(folder, 13), options).is_text());
  EXPECT_FALSE(TokenDataset::open("synthetic", options).is_text());
}

TEST(TokenDataset, RefusesASequenceLongerThanTheData) {
  TemporaryFolder folder;
  const auto path = counting_file(folder, 8);
  EXPECT_EQ(message_of<Error>([&] { TokenDataset::open(path, {.vocab_size = 100, .seq_len = 8}); }),
            path + ": expected more tokens than the sequence length 8, got 8");
}

TEST(TokenDataset, RefusesATokenOutsideTheVocabularyWhenItIsRead) {
  TemporaryFolder folder;
  const auto path = counting_file(folder, 13);
  const auto data = TokenDataset::open(path, {.vocab_size = 8, .seq_len = 4});
  EXPECT_NO_THROW(data.batch(0, 1));
  const std::string message = path + ": expected tokens below the vocabulary size 8, got 8 at position 8";
  EXPECT_EQ(message_of<Error>([&] { data.batch(1, 1); }), message);
  EXPECT_EQ(message_of<Error>([&] { data.check_vocabulary(); }), message);
}

TEST(TokenDataset, RefusesOptionsThatMakeNoSense) {
  EXPECT_EQ(message_of<Error>([] { TokenDataset::open("synthetic", {.vocab_size = 8, .seq_len = 0}); }),
            "a window needs a sequence length of at least 1, got 0");
  EXPECT_EQ(message_of<Error>(
                [] { TokenDataset::open("synthetic", {.vocab_size = 8, .seq_len = 4, .shuffle_seed = 1}); }),
            "synthetic tokens are endless and cannot be shuffled; choose another seed instead");
  const auto data = TokenDataset::open("synthetic", {.vocab_size = 8, .seq_len = 4});
  EXPECT_EQ(message_of<Error>([&] { data.batch(0, 0); }), "a batch needs at least 1 window, got 0");
}

}  // namespace
}  // namespace snug::io
