#include "snug/plan/bound.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace snug::plan {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Corner {
  std::uint64_t kept_bytes = 0;
  double seconds = 0;
};

// Gives up bytes for seconds, at a constant price.
struct Saving {
  std::uint64_t bytes = 0;
  double seconds_per_byte = 0;
};

double price(const Corner& fewer, const Corner& more) {
  return (fewer.seconds - more.seconds) / static_cast<double>(more.kept_bytes - fewer.kept_bytes);
}

// A choice by what its own forward and backward need.
struct Need {
  std::uint64_t own_bytes = 0;
  double seconds = 0;
};

// What is left of a region's choices under a budget.
struct Relaxed {
  std::vector<Corner> corners;  // convex: from the fewest bytes to the fastest
  std::vector<Need> needs;
  double fastest() const { return corners.back().seconds; }
};

std::vector<Corner> convex_hull(std::vector<Corner> corners) {
  std::ranges::sort(corners, [](const Corner& a, const Corner& b) {
    return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes : a.seconds < b.seconds;
  });
  std::vector<Corner> hull;
  for (const Corner& next : corners) {
    if (!hull.empty() && next.seconds >= hull.back().seconds) continue;
    while (hull.size() > 1 && price(hull[hull.size() - 2], hull.back()) <= price(hull.back(), next))
      hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

Relaxed relax(const Choices& choices, std::uint64_t budget) {
  std::vector<Corner> corners;
  Relaxed relaxed;
  for (const Choice& choice : choices) {
    const std::uint64_t own = std::max(choice.forward_bytes, choice.backward_bytes);
    if (own > budget) continue;
    const double seconds = choice.forward_seconds + choice.backward_seconds;
    relaxed.needs.push_back({own, seconds});
    corners.push_back({choice.kept_bytes, seconds});
  }
  relaxed.corners = convex_hull(std::move(corners));
  return relaxed;
}

// The regions passed so far, each at its fastest, and the savings they offer, cheapest first.
class Passed {
 public:
  void add(const Relaxed& region) {
    const auto& corners = region.corners;
    kept_bytes_ += corners.back().kept_bytes;
    for (std::size_t i = 1; i < corners.size(); ++i)
      savings_.push_back(
          {corners[i].kept_bytes - corners[i - 1].kept_bytes, price(corners[i - 1], corners[i])});
    std::ranges::sort(savings_, {}, &Saving::seconds_per_byte);
  }

  // The least time it takes to keep no more than that.
  double extra_seconds(std::uint64_t capacity) const {
    std::uint64_t excess = kept_bytes_ - std::min(kept_bytes_, capacity);
    double seconds = 0;
    for (const Saving& saving : savings_) {
      const std::uint64_t bytes = std::min(saving.bytes, excess);
      seconds += static_cast<double>(bytes) * saving.seconds_per_byte;
      excess -= bytes;
    }
    return excess > 0 ? kInfinity : seconds;
  }

 private:
  std::uint64_t kept_bytes_ = 0;
  std::vector<Saving> savings_;
};

// The least time beyond everybody's fastest that leaves the region room for its own needs.
double extra_seconds(const Passed& passed, const Relaxed& region, std::uint64_t budget) {
  double least = kInfinity;
  for (const Need& need : region.needs)
    least = std::min(least, passed.extra_seconds(budget - need.own_bytes) + need.seconds - region.fastest());
  return least;
}

}  // namespace

double lower_bound(const Problem& problem, std::uint64_t budget_bytes) {
  if (budget_bytes < problem.floor_bytes) return kInfinity;
  Passed passed;
  double fastest = 0, extra = 0;
  std::uint64_t kept_at_least = 0;  // by the regions passed
  for (const auto& choices : problem.regions) {
    if (kept_at_least > budget_bytes) return kInfinity;
    const Relaxed region = relax(*choices, budget_bytes - kept_at_least);
    if (region.corners.empty()) return kInfinity;
    extra = std::max(extra, extra_seconds(passed, region, budget_bytes));
    fastest += region.fastest();
    kept_at_least += region.corners.front().kept_bytes;
    passed.add(region);
  }
  extra = std::max(extra, passed.extra_seconds(budget_bytes));
  constexpr double kRounding = 1 - 1e-12;
  return (problem.fixed_seconds + problem.passes * (fastest + extra)) * kRounding;
}

}  // namespace snug::plan
