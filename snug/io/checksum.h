// XXH3, 64 bits: a flipped bit in a file shows. No protection against someone who means to deceive.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "snug/base/export.h"
#include "snug/base/mapped_file.h"

namespace snug::io {

class SNUG_API Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;  // a running state
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  std::string value() const;  // 16 hexadecimal digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

SNUG_API std::string checksum_of(const MappedFile& file);  // leaves none of its pages in RAM
SNUG_API std::string checksum_of(std::string_view text);

}  // namespace snug::io
