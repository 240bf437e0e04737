// Endless tokens from a seed, for runs without data. A model can learn them: three of four tokens are an
// affine function of the token before, the fourth is a fresh draw that favours small tokens.
#pragma once

#include <cstdint>
#include <span>

#include "snug/base/export.h"

namespace snug::io {

class SNUG_API SyntheticTokens {
 public:
  SyntheticTokens(std::int64_t vocab_size, std::uint64_t seed);

  // Tokens [first, first + out.size()): a pure function of vocabulary, seed and position.
  void read(std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  bool starts_fresh(std::uint64_t position) const;
  std::uint64_t draw(std::uint64_t position) const;
  std::uint64_t follow(std::uint64_t token) const { return (factor_ * token + offset_) % vocab_size_; }

  std::uint64_t vocab_size_;
  std::uint64_t factor_;
  std::uint64_t offset_;
  std::uint64_t fresh_key_;
  std::uint64_t draw_key_;
};

}  // namespace snug::io
