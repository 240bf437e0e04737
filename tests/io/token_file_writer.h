// Token files as llm.c writes them, whole or with one thing wrong.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace snug::testing {

// Returns the path.
inline std::string write(const TemporaryFolder& folder, const std::string& name, const std::string& bytes) {
  write_file(folder / name, bytes);
  return (folder / name).string();
}

template <class T>
std::string token_file(std::int32_t magic, std::int32_t version, std::int32_t count,
                       const std::vector<T>& tokens) {
  std::array<std::int32_t, 256> header{};
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string bytes(reinterpret_cast<const char*>(header.data()), sizeof header);
  return bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
}

inline std::string uint16_file(const std::vector<std::uint16_t>& tokens) {
  return token_file(20240520, 1, static_cast<std::int32_t>(tokens.size()), tokens);
}

inline std::string uint32_file(const std::vector<std::uint32_t>& tokens) {
  return token_file(20240801, 7, static_cast<std::int32_t>(tokens.size()), tokens);
}

}  // namespace snug::testing
