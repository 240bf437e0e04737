#include "snug/io/synthetic_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

std::vector<std::int64_t> read(const SyntheticTokens& tokens, std::uint64_t first, std::size_t count) {
  std::vector<std::int64_t> out(count);
  tokens.read(first, out);
  return out;
}

TEST(SyntheticTokens, DependOnPositionAndNotOnWhereReadingBegan) {
  const SyntheticTokens tokens(1000, 42);
  const auto whole = read(tokens, 0, 500);
  for (std::size_t first = 0; first < 400; ++first) {
    const std::vector<std::int64_t> expected(whole.begin() + static_cast<std::ptrdiff_t>(first),
                                             whole.begin() + static_cast<std::ptrdiff_t>(first + 100));
    ASSERT_EQ(read(tokens, first, 100), expected) << "from " << first;
  }
}

TEST(SyntheticTokens, StayInsideTheVocabulary) {
  for (std::int64_t vocabulary : {1, 2, 3, 256, 32000, 128256}) {
    for (std::int64_t token : read(SyntheticTokens(vocabulary, 7), 1000, 5000)) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, vocabulary);
    }
  }
}

TEST(SyntheticTokens, DifferBySeed) {
  EXPECT_EQ(read(SyntheticTokens(256, 1), 0, 200), read(SyntheticTokens(256, 1), 0, 200));
  EXPECT_NE(read(SyntheticTokens(256, 1), 0, 200), read(SyntheticTokens(256, 2), 0, 200));
}

// What makes a loss fall: the most frequent follower of a token is right about three times of four, by chance
// it would be once in 256.
TEST(SyntheticTokens, CanBeLearnt) {
  const auto tokens = read(SyntheticTokens(256, 3), 0, 200000);
  std::map<std::int64_t, std::map<std::int64_t, int>> followers;
  for (std::size_t i = 1; i < tokens.size(); ++i) ++followers[tokens[i - 1]][tokens[i]];
  int right = 0;
  for (const auto& [token, counts] : followers) {
    int most = 0;
    for (const auto& [next, count] : counts) most = std::max(most, count);
    right += most;
  }
  const double accuracy = static_cast<double>(right) / static_cast<double>(tokens.size() - 1);
  EXPECT_GT(accuracy, 0.7);
  EXPECT_LT(accuracy, 0.8);
  EXPECT_EQ(followers.size(), 256u);
}

TEST(SyntheticTokens, NeedAVocabulary) {
  EXPECT_EQ(testing::message_of<Error>([] { SyntheticTokens(0, 1); }),
            "synthetic tokens need a vocabulary of 1 to 2^31, got 0");
}

}  // namespace
}  // namespace snug::io
