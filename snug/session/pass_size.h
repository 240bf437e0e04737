// How large a pass may be, from what smaller ones took. Internal to session.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

// Note [How large a pass may be]
// Nobody knows before the first step how much of a batch fits. So passes are of one row at first, and each
// step that is sketched tells what a pass that keeps nothing has for itself, beside weights and gradients.
// The next sketch is of the largest pass that should fit; the planner then has the choice of all that were
// sketched. Sizes are in elements, so that batches of other lengths are split otherwise.
class PassSearch {
 public:
  std::int64_t pass_size() const { return pass_size_; }
  void begin_step(std::int64_t step_size) { step_size_ = step_size; }

  // After a step with passes of `rows` rows that was sketched: whether the next one is to be, with larger
  // ones. `held_bytes` of the `room` outlive a pass.
  bool try_larger(const PassPoint& pass, std::int64_t rows, double room, double held_bytes);
  void end(std::int64_t pass_size) { pass_size_ = pass_size; }

 private:
  std::int64_t pass_size_ = 0;
  std::int64_t step_size_ = 0;     // of the whole batch
  std::int64_t largest_step_ = 0;  // so far
  int sketches_ = 0;
  std::vector<PassPoint> points_;
};

}  // namespace snug::session
