// XXH3, 64 bits: a flipped bit in a file shows. No protection against someone who means to deceive.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

SNUG_API std::uint64_t checksum_of(const MappedFile& file);  // leaves none of its pages in RAM
SNUG_API std::string checksum_of(std::string_view text);     // in 16 hexadecimal digits
SNUG_API std::string hexadecimal(std::uint64_t checksum);

}  // namespace snug::io
