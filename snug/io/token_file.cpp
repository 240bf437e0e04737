// llm.c's layouts: 256 int32 of header (magic, version, number of tokens, unused), then uint16 or uint32
// tokens, little endian.
#include "snug/io/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

#include "snug/base/error.h"
#include "snug/io/checksum.h"

namespace snug::io {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

constexpr std::size_t kHeaderInts = 256;

struct Layout {
  std::int32_t magic;
  std::int32_t version;
  std::uint64_t token_bytes;
};
constexpr Layout kLayouts[] = {{20240520, 1, 2}, {20240801, 7, 4}};

void check_regular(const std::filesystem::path& path) {
  std::error_code cause;
  const auto status = std::filesystem::status(path, cause);
  constexpr auto kExpected = "expected 'synthetic', a token file (*.bin) or a text file";
  check(std::filesystem::exists(status), path.string(), ": ", cause.message(), "; ", kExpected);
  check(!std::filesystem::is_directory(status), path.string(), ": is a folder; ", kExpected);
  check(std::filesystem::is_regular_file(status), path.string(), ": is not a regular file; ", kExpected);
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, std::int64_t vocab_size) {
  check(vocab_size >= 1, "a token file needs a vocabulary of at least 1, got ", vocab_size);
  vocab_size_ = static_cast<std::uint64_t>(vocab_size);
  check_regular(path);
  file_ = std::make_shared<const MappedFile>(path);
  path.extension() == ".bin" ? open_bin() : open_text();
}

void TokenFile::open_bin() {
  const std::string name = file_->path().string();
  const auto bytes = file_->bytes();
  std::array<std::int32_t, kHeaderInts> header;
  check(bytes.size() >= sizeof header, name, ": expected a token file with a header of ", sizeof header,
        " bytes, got a file of ", bytes.size(), " bytes");
  std::memcpy(header.data(), bytes.data(), sizeof header);

  const auto layout = std::find_if(std::begin(kLayouts), std::end(kLayouts),
                                   [&](const Layout& known) { return known.magic == header[0]; });
  check(layout != std::end(kLayouts), name, ": expected magic ", kLayouts[0].magic, " (uint16 tokens) or ",
        kLayouts[1].magic, " (uint32 tokens), got ", header[0]);
  check(header[1] == layout->version, name, ": expected version ", layout->version, " with magic ",
        layout->magic, ", got ", header[1]);
  check(header[2] >= 1, name, ": expected a header with at least 1 token, got ", header[2]);

  header_bytes_ = sizeof header;
  token_bytes_ = layout->token_bytes;
  size_ = static_cast<std::uint64_t>(header[2]);
  const std::uint64_t expected = header_bytes_ + size_ * token_bytes_;
  check(bytes.size() == expected, name, ": its header says ", size_, " tokens, expected ", expected,
        " bytes, got ", bytes.size(),
        bytes.size() < expected ? ": the file is cut short" : ": the file is too long");
}

void TokenFile::open_text() {
  size_ = file_->bytes().size();
  check(size_ > 0, file_->path().string(), ": expected text, got an empty file");
}

std::string TokenFile::checksum() const {
  return checksum_of(*file_);
}

void TokenFile::read(std::uint64_t first, std::span<std::int64_t> out) const {
  ensure(first <= size_ && out.size() <= size_ - first, "read past the end of ", file_->path().string());
  switch (token_bytes_) {
    case 1:
      return read_as<std::uint8_t>(first, out);
    case 2:
      return read_as<std::uint16_t>(first, out);
    default:
      return read_as<std::uint32_t>(first, out);
  }
}

void TokenFile::check_vocabulary() const {
  switch (token_bytes_) {
    case 1:
      return check_as<std::uint8_t>();
    case 2:
      return check_as<std::uint16_t>();
    default:
      return check_as<std::uint32_t>();
  }
}

template <class T>
std::span<const T> TokenFile::tokens() const {
  return {reinterpret_cast<const T*>(file_->bytes().data() + header_bytes_), size_};
}

template <class T>
void TokenFile::read_as(std::uint64_t first, std::span<std::int64_t> out) const {
  const auto source = tokens<T>().subspan(first, out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (source[i] >= vocab_size_) [[unlikely]]
      refuse(source[i], first + i);
    out[i] = source[i];
  }
}

template <class T>
void TokenFile::check_as() const {
  if (vocab_size_ > std::numeric_limits<T>::max()) return;
  // The largest of a chunk is found without a branch per token; only a bad chunk is searched for the
  // position.
  constexpr std::size_t kChunk = 1 << 16;
  const auto all = tokens<T>();
  for (std::size_t begin = 0; begin < all.size(); begin += kChunk) {
    const auto chunk = all.subspan(begin, std::min(kChunk, all.size() - begin));
    T largest = 0;
    for (T token : chunk) largest = std::max(largest, token);
    if (largest < vocab_size_) continue;
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      if (chunk[i] >= vocab_size_) refuse(chunk[i], begin + i);
    }
  }
}

void TokenFile::refuse(std::uint64_t token, std::uint64_t position) const {
  fail(file_->path().string(), ": expected tokens below the vocabulary size ", vocab_size_, ", got ", token,
       " at position ", position);
}

}  // namespace snug::io
