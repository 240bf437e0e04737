#include "snug/io/token_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/base/error.h"
#include "snug/io/hash.h"
#include "snug/io/permutation.h"

namespace snug::io {

TokenDataset TokenDataset::open(const std::string& spec, const OpenOptions& options) {
  check(options.seq_len >= 1, "a window needs a sequence length of at least 1, got ", options.seq_len);
  if (spec == "synthetic") {
    check(!options.shuffle_seed,
          "synthetic tokens are endless and cannot be shuffled; choose another seed instead");
    return {SyntheticTokens(options.vocab_size, options.seed), options, kUnlimited};
  }
  TokenFile file(spec, options.vocab_size);
  const std::uint64_t windows = (file.size() - 1) / static_cast<std::uint64_t>(options.seq_len);
  check(windows >= 1, spec, ": expected more tokens than the sequence length ", options.seq_len, ", got ",
        file.size());
  return {std::move(file), options, windows};
}

TokenDataset::TokenDataset(Source source, const OpenOptions& options, std::uint64_t windows)
    : source_(std::move(source)), options_(options), windows_(windows) {}

bool TokenDataset::is_text() const {
  const auto* file = std::get_if<TokenFile>(&source_);
  return file && file->is_text();
}

std::string TokenDataset::identity() const {
  const auto* file = std::get_if<TokenFile>(&source_);
  if (!file) return "synthetic";
  return concat(file->is_text() ? "text " : "tokens ", file->checksum());
}

Batch TokenDataset::batch(std::uint64_t first_window, std::int64_t count) const {
  check(count >= 1, "a batch needs at least 1 window, got ", count);
  const std::int64_t seq = options_.seq_len;
  Batch batch{at::empty({count, seq}, at::kLong), at::empty({count, seq}, at::kLong)};
  auto* tokens = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<std::int64_t>();
  std::vector<std::int64_t> window(static_cast<std::size_t>(seq) + 1);
  for (std::int64_t row = 0; row < count; ++row) {
    const std::uint64_t first =
        place(first_window + static_cast<std::uint64_t>(row)) * static_cast<std::uint64_t>(seq);
    std::visit([&](const auto& source) { source.read(first, window); }, source_);
    std::copy_n(window.begin(), seq, tokens + row * seq);
    std::copy_n(window.begin() + 1, seq, targets + row * seq);
  }
  return batch;
}

void TokenDataset::check_vocabulary() const {
  if (const auto* file = std::get_if<TokenFile>(&source_)) file->check_vocabulary();
}

// Where in the file a window, counted over all epochs, lies.
std::uint64_t TokenDataset::place(std::uint64_t window) const {
  const std::uint64_t epoch = window / windows_;
  const std::uint64_t index = window % windows_;
  if (!options_.shuffle_seed) return index;
  return Permutation(windows_, hash64(*options_.shuffle_seed, epoch))(index);
}

}  // namespace snug::io
