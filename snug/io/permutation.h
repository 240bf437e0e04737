// A seeded permutation of 0 .. size-1 in constant memory: shuffling a file of any size needs no index array.
//
//   Permutation shuffled(windows, seed);
//   for (std::uint64_t i = 0; i < windows; ++i) visit(shuffled(i));   // every window once
#pragma once

#include <array>
#include <cstdint>

#include "snug/base/export.h"

namespace snug::io {

class SNUG_API Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed);  // size: 1 to 2^63
  std::uint64_t operator()(std::uint64_t index) const;  // index < size

 private:
  std::uint64_t encrypt(std::uint64_t x) const;

  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint64_t, 6> keys_;
};

}  // namespace snug::io
