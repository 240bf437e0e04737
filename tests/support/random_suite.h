// How large a random suite is and where it begins. Both are the same in every run, so that a change fails
// only by what it does itself; `make test-long` draws another beginning and asks for more.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace snug::random_suite {

inline std::uint64_t size(const char* variable, std::uint64_t otherwise) {
  const char* const given = std::getenv(variable);
  return given ? std::strtoull(given, nullptr, 10) : otherwise;
}

inline std::uint64_t seed() {
  return size("SNUG_SEED", 1);
}

}  // namespace snug::random_suite
