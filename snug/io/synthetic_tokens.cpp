// The chain of a position starts at the last fresh draw before it, so any position can be computed by itself.
#include "snug/io/synthetic_tokens.h"

#include <algorithm>
#include <numeric>

#include "snug/base/error.h"
#include "snug/io/hash.h"

namespace snug::io {
namespace {

constexpr std::uint64_t kLongestChain = 64;

}  // namespace

SyntheticTokens::SyntheticTokens(std::int64_t vocab_size, std::uint64_t seed) {
  check(vocab_size >= 1 && vocab_size <= std::int64_t{1} << 31,
        "synthetic tokens need a vocabulary of 1 to 2^31, got ", vocab_size);
  vocab_size_ = static_cast<std::uint64_t>(vocab_size);
  offset_ = hash64(seed, 0) % vocab_size_;
  factor_ = hash64(seed, 1) % vocab_size_;
  fresh_key_ = hash64(seed, 2);
  draw_key_ = hash64(seed, 3);
  // A factor without common divisor: two different tokens are never followed by the same one.
  while (std::gcd(factor_, vocab_size_) != 1) ++factor_;
}

void SyntheticTokens::read(std::uint64_t first, std::span<std::int64_t> out) const {
  std::uint64_t start = first;
  while (!starts_fresh(start)) --start;
  std::uint64_t token = draw(start);
  for (std::uint64_t position = start + 1; position <= first; ++position) token = follow(token);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i > 0) token = starts_fresh(first + i) ? draw(first + i) : follow(token);
    out[i] = static_cast<std::int64_t>(token);
  }
}

bool SyntheticTokens::starts_fresh(std::uint64_t position) const {
  return position % kLongestChain == 0 || hash64(fresh_key_, position) % 4 == 0;
}

std::uint64_t SyntheticTokens::draw(std::uint64_t position) const {
  const double u = static_cast<double>(hash64(draw_key_, position) >> 11) * 0x1p-53;
  const auto token = static_cast<std::uint64_t>(u * u * u * static_cast<double>(vocab_size_));
  return std::min(token, vocab_size_ - 1);
}

}  // namespace snug::io
