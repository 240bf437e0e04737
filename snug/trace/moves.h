// Note [One region ahead]
// What is not needed between a region's forward and its backward may be elsewhere meanwhile. It moves at the
// borders of regions:
//
//   its region's forward ends            it is sent: a copy is asked for
//   the next region's forward ends       it leaves: the device's memory goes, after the copy
//   the next region's backward begins    it is fetched: memory is taken, the copy back is asked for
//   its own backward begins              the same, if it did not happen yet
//   it is used                           the device waits for that copy
//
// "Next" is in the order of the forward. So a copy has one region's time each way, and what the last region
// of a pass sends never leaves. These are points of the program: what a step needs does not depend on how
// fast a link is. host::Schedule does it; plan/timeline and plan/chain_step count on it.
#pragma once

#include <cstddef>
#include <optional>

namespace snug::trace {

inline constexpr std::size_t kRegionsAhead = 1;

// The region that computes while what `region` sends is copied, there and back; none if no such one is among
// the `regions` of the pass.
constexpr std::optional<std::size_t> copied_beside(std::size_t region, std::size_t regions) {
  return region + kRegionsAhead < regions ? std::optional(region + kRegionsAhead) : std::nullopt;
}

// The other way round: the region of which that is copied while this one computes.
constexpr std::optional<std::size_t> copies_beside(std::size_t region) {
  return region >= kRegionsAhead ? std::optional(region - kRegionsAhead) : std::nullopt;
}

}  // namespace snug::trace
