// A file of tokens, mapped: llm.c's two layouts (*.bin) or plain text, whose bytes are the tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "snug/base/export.h"
#include "snug/base/mapped_file.h"

namespace snug::io {

class SNUG_API TokenFile {
 public:
  // Throws Error, naming the file, if it is not there, is no regular file, or is not what its layout says.
  TokenFile(const std::filesystem::path& path, std::int64_t vocab_size);

  std::uint64_t size() const { return size_; }  // in tokens
  bool is_text() const { return token_bytes_ == 1; }
  std::string checksum() const;  // of the whole file, which is read once

  // Tokens [first, first + out.size()). Throws Error at a token outside the vocabulary, naming its position.
  void read(std::uint64_t first, std::span<std::int64_t> out) const;
  void check_vocabulary() const;  // the same check for every token of the file

 private:
  void open_bin();
  void open_text();
  template <class T>
  std::span<const T> tokens() const;
  template <class T>
  void read_as(std::uint64_t first, std::span<std::int64_t> out) const;
  template <class T>
  void check_as() const;
  [[noreturn]] void refuse(std::uint64_t token, std::uint64_t position) const;

  std::shared_ptr<const MappedFile> file_;
  std::uint64_t vocab_size_;
  std::uint64_t header_bytes_ = 0;
  std::uint64_t token_bytes_ = 1;
  std::uint64_t size_ = 0;
};

}  // namespace snug::io
