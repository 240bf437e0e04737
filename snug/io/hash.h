// One 64-bit hash for everything that must be random by number and equal on every machine.
#pragma once

#include <cstdint>

namespace snug::io {

// The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). A
// bijection.
constexpr std::uint64_t hash64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr std::uint64_t hash64(std::uint64_t seed, std::uint64_t x) {
  return hash64(hash64(seed) ^ x);
}

}  // namespace snug::io
