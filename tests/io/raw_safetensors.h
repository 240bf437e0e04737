// Files that a tensor library would not write, for tests of what is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"

namespace snug::testing {

// Eight bytes of length, the header, the data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

}  // namespace snug::testing
