// Random damage to bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace snug::testing {

// Random: below(n) is a number from 0 to n - 1. Never empty afterwards.
template <class Random>
void mutate(std::string& bytes, Random& random) {
  const std::size_t at = random.below(bytes.size());
  const std::size_t length = std::min<std::size_t>(random.below(16) + 1, bytes.size() - at);
  switch (random.below(6)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.below(8));
      break;
    case 1:
      bytes[at] = static_cast<char>(random.below(256));
      break;
    case 2:
      bytes.erase(at, length);
      break;
    case 3:
      bytes.insert(at, bytes.substr(random.below(bytes.size()), length));
      break;
    case 4:
      bytes.insert(at, length, random.below(2) == 0 ? '\xff' : '\0');
      break;
    default:
      bytes.resize(at);
      break;
  }
  if (bytes.empty()) bytes = "S";
}

}  // namespace snug::testing
