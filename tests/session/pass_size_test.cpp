#include "snug/session/pass_size.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace snug::session {
namespace {

// Sizes that are tried for a batch of so many rows, and the bytes of the last.
std::vector<PassPoint> explore(const std::function<double(double)>& bytes, double room, std::int64_t most) {
  std::vector<PassPoint> points{{1, static_cast<std::uint64_t>(bytes(1))}};
  while (points.size() < 5) {
    const std::int64_t size = points.back().size;
    const auto next = std::min(
        most, static_cast<std::int64_t>(times_as_large(points, room) * static_cast<double>(size) + 1e-6));
    if (next <= size) break;
    points.push_back({next, static_cast<std::uint64_t>(bytes(static_cast<double>(next)))});
  }
  return points;
}

TEST(PassSize, IsFoundWithoutEverBeingTooLarge) {
  for (const double constant : {0.0, 1e3, 1e6})
    for (const double linear : {1.0, 1e3})
      for (const double square : {0.0, 1.0, 300.0})
        for (const double room : {2.2e6, 1e7, 1e9}) {
          SCOPED_TRACE(::testing::Message()
                       << constant << " + " << linear << " n + " << square << " n^2 in " << room);
          const auto bytes = [=](double n) { return constant + linear * n + square * n * n; };
          const auto points = explore(bytes, room, 1'000'000);
          for (const PassPoint& point : points) EXPECT_LE(static_cast<double>(point.own_bytes), 1.01 * room);
          // A third of what fits, or of the batch.
          const auto last = static_cast<double>(points.back().size);
          EXPECT_TRUE(3 * last >= 1e6 || bytes(3 * last + 2) > room) << points.back().size;
        }
}

TEST(PassSize, StaysWhereThereIsNoRoom) {
  const PassPoint one[] = {{4, 1000}};
  EXPECT_EQ(times_as_large(one, 900), 1);
  EXPECT_LT(times_as_large(one, 1500), 2);
  const PassPoint two[] = {{4, 1000}, {8, 1000}};  // it does not grow at all
  EXPECT_GT(times_as_large(two, 1500), 2);
}

}  // namespace
}  // namespace snug::session
