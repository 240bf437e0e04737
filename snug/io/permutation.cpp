// A Feistel network permutes the smallest 4^k >= size; its cycle is walked until the value is below size.
#include "snug/io/permutation.h"

#include <algorithm>
#include <bit>

#include "snug/base/error.h"
#include "snug/io/hash.h"

namespace snug::io {

Permutation::Permutation(std::uint64_t size, std::uint64_t seed) : size_(size) {
  check(size >= 1 && size <= std::uint64_t{1} << 63, "a permutation needs a size of 1 to 2^63, got ", size);
  half_bits_ = std::max(1, static_cast<int>(std::bit_width(size - 1) + 1) / 2);
  for (std::size_t round = 0; round < keys_.size(); ++round) keys_[round] = hash64(seed, round);
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  ensure(index < size_, "permutation of ", size_, " asked for index ", index);
  // At most 4 * size values are permuted, so this takes 4 rounds on average at worst. It ends: the cycle
  // leads back.
  std::uint64_t x = index;
  do x = encrypt(x);
  while (x >= size_);
  return x;
}

std::uint64_t Permutation::encrypt(std::uint64_t x) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = x >> half_bits_;
  std::uint64_t right = x & mask;
  for (std::uint64_t key : keys_) {
    const std::uint64_t mixed = left ^ (hash64(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace snug::io
