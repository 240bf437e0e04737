// How much larger a pass may be, from what smaller ones took. Internal to session.
#pragma once

#include <cstdint>
#include <span>

#include "snug/base/export.h"

namespace snug::session {

// A pass of so many elements that kept nothing had so many bytes of its own.
struct PassPoint {
  std::int64_t size = 0;
  std::uint64_t own_bytes = 0;
};

// Times the last of the points, which are by rising size, for `room` bytes; 1 if that is all there is. With
// one point all of it may grow: as the square of the size, or if it at most doubles, as the size. With two,
// what they differ by grows as the square. Three make a parabola.
SNUG_API double times_as_large(std::span<const PassPoint> points, double room);

}  // namespace snug::session
