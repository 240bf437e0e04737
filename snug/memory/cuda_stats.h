// Internal to memory, in builds with CUDA.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>

namespace snug::memory {

// The present figure over all pools.
inline std::uint64_t current_bytes(const c10::CachingAllocator::StatArray& stat) {
  return static_cast<std::uint64_t>(
      stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

// The highest so far.
inline std::uint64_t peak_bytes(const c10::CachingAllocator::StatArray& stat) {
  return static_cast<std::uint64_t>(
      stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak);
}

}  // namespace snug::memory
