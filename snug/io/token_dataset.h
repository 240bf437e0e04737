// Training data as windows of tokens: a token file, a text file, or synthetic tokens, in order or shuffled.
//
//   auto data = TokenDataset::open("train.bin", {.vocab_size = 50257, .seq_len = 1024});
//   data.check_vocabulary();
//   Batch batch = data.batch(step * 8, 8);   // windows step*8 .. step*8+7; after the last, the next epoch
//
// Where a run stands is one number, the next window: resuming needs nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>

#include "snug/base/export.h"
#include "snug/io/synthetic_tokens.h"
#include "snug/io/token_file.h"

namespace snug::io {

// Both [sequences, seq] int64 on the CPU. targets[i][j] is the token after tokens[i][j]; -100 means ignored.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

struct OpenOptions {
  std::int64_t vocab_size = 0;
  std::int64_t seq_len = 0;
  std::uint64_t seed = 0;                                    // of synthetic tokens
  std::optional<std::uint64_t> shuffle_seed = std::nullopt;  // none: file order
};

class SNUG_API TokenDataset {
 public:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

  // spec: "synthetic", a path that ends in .bin (token file), or any other path (text, its bytes are the
  // tokens). Throws Error, naming the file, for anything that cannot give one whole window.
  static TokenDataset open(const std::string& spec, const OpenOptions& options);

  // Windows in one epoch; window i holds tokens [i * seq_len, i * seq_len + seq_len], one more than it
  // predicts.
  std::uint64_t windows() const { return windows_; }  // kUnlimited for synthetic tokens
  bool is_text() const;
  std::string identity() const;  // the same for the same tokens, wherever their file lies; reads it once

  // `count` windows from `first_window` on, counted over all epochs. Each epoch has its own order when
  // shuffled.
  Batch batch(std::uint64_t first_window, std::int64_t count) const;

  // Reads every token once. Throws Error at the first one outside the vocabulary; batch() does so too, but
  // later.
  void check_vocabulary() const;

 private:
  using Source = std::variant<SyntheticTokens, TokenFile>;
  TokenDataset(Source source, const OpenOptions& options, std::uint64_t windows);
  std::uint64_t place(std::uint64_t window) const;

  Source source_;
  OpenOptions options_;
  std::uint64_t windows_;
};

}  // namespace snug::io
