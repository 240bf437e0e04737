#include "snug/session/pass_size.h"

#include <algorithm>
#include <cmath>

#include "snug/base/error.h"

namespace snug::session {

namespace {

struct Point {
  double size, bytes;
};

double slope(const Point& a, const Point& b) {
  return (b.bytes - a.bytes) / (b.size - a.size);
}

// a + b * size^2 through both.
double size_by_two(const Point& a, const Point& b, double room) {
  const double per = std::max(b.bytes - a.bytes, 1.0) / (b.size * b.size - a.size * a.size);
  return std::sqrt(b.size * b.size + (room - b.bytes) / per);
}

// The parabola through all three, or, where it bends down, the line through the last two:
// c + steep * (size - c.size) + bend * (size - c.size) * (size - b.size).
double size_by_three(const Point& a, const Point& b, const Point& c, double room) {
  const double steep = std::max(slope(b, c), 1 / c.size);
  const double bend = std::max(0.0, (slope(b, c) - slope(a, b)) / (c.size - a.size));
  const double there = steep + bend * (c.size - b.size), missing = room - c.bytes;
  if (bend * missing < 1e-9 * there * there) return c.size + missing / there;
  return c.size + (std::sqrt(there * there + 4 * bend * missing) - there) / (2 * bend);
}

}  // namespace

double times_as_large(std::span<const PassPoint> points, double room) {
  ensure(!points.empty(), "no pass was measured");
  const auto point = [&](std::size_t from_end) {
    const PassPoint& some = points[points.size() - from_end];
    return Point{static_cast<double>(some.size), static_cast<double>(some.own_bytes)};
  };
  const Point last = point(1);
  if (room <= last.bytes) return 1;
  if (points.size() == 1) {
    const double times = room / std::max(last.bytes, 1.0);
    return std::max(std::sqrt(times), std::min(times, 2.0));
  }
  const double size =
      points.size() == 2 ? size_by_two(point(2), last, room) : size_by_three(point(3), point(2), last, room);
  return size / last.size;
}

bool PassSearch::try_larger(const PassPoint& pass, std::int64_t rows, double room, double held_bytes) {
  constexpr int kMostSketches = 5;
  constexpr double kSafe = 0.93;
  largest_step_ = std::max(largest_step_, step_size_);
  if (++sketches_ >= kMostSketches) return false;
  const bool is_larger = points_.empty() || pass.size > points_.back().size;
  if (is_larger) points_.push_back(pass);
  // A batch that is shorter than others were says little.
  if (!is_larger || pass.size >= step_size_) return step_size_ < largest_step_;
  const std::int64_t row_size = pass.size / rows;
  const double times = times_as_large(points_, kSafe * room - held_bytes);
  const auto more =
      std::min(static_cast<std::int64_t>(times * static_cast<double>(rows) + 1e-6), step_size_ / row_size);
  if (more <= rows) return false;
  pass_size_ = more * row_size;
  return true;
}

}  // namespace snug::session
