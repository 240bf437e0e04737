// What CPU and GPU add up. Free of torch; internal to tape.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define SNUG_ON_BOTH __host__ __device__
#else
#define SNUG_ON_BOTH
#endif

namespace snug::tape {

// What the word at this place adds to the sum: its bits stirred without loss, for each place otherwise.
SNUG_ON_BOTH inline std::uint64_t stirred(std::uint64_t word, std::uint64_t place) {
  std::uint64_t z = word + place * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93ull;
  return z ^ (z >> 29);
}

}  // namespace snug::tape
