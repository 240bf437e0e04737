// Seeded sequences of allocations and frees, for the allocator's model and for torch's own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>

#include "snug/base/bytes.h"

namespace snug::plan {

struct Step {
  std::uint64_t bytes = 0;  // 0: free
  std::size_t which = 0;    // of the live blocks
};

// Sizes from 1 byte to `largest`, every magnitude as often. One size in two is one of sixteen, as in a
// model's layers, so that blocks of equal size meet. Grows to `most_live` bytes, falls to nothing, and again.
class RandomSteps {
 public:
  RandomSteps(std::uint64_t seed, std::uint64_t most_live, std::uint64_t largest = 200_MiB)
      : random_(seed), most_live_(most_live), largest_(largest) {
    for (std::uint64_t& size : favourites_) size = any_size();
  }

  Step next(std::size_t live_blocks, std::uint64_t live_bytes) {
    if (live_blocks == 0) growing_ = true;
    if (live_bytes > most_live_) growing_ = false;
    if (live_blocks > 0 && random_() % 10 < (growing_ ? 3u : 7u))
      return {.bytes = 0, .which = random_() % live_blocks};
    return {.bytes = random_() % 2 ? favourites_[random_() % favourites_.size()] : any_size(), .which = 0};
  }

 private:
  std::uint64_t any_size() {
    const std::uint64_t below = std::uint64_t{2} << random_() % 28;
    return std::min(1 + random_() % below, largest_);
  }

  std::mt19937_64 random_;
  std::uint64_t most_live_;
  std::uint64_t largest_;
  std::array<std::uint64_t, 16> favourites_;
  bool growing_ = true;
};

}  // namespace snug::plan
