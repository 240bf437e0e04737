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

// Note [The link in the bound]
// A direction takes at least as long as computing does, slowed down by its copies, and at least as long as
// the copies do; so at least as long as any mixture of the two. For a given mixture regions are independent
// again, and the bound is the highest of those of several.
struct Mixture {
  double forward = 0, backward = 0;  // the share of copying
};

double mixed_seconds(const Problem& problem, const Choice& choice, std::uint64_t copied_bytes,
                     Mixture mixture) {
  const auto mixed = [&](double computing, double rate, double share) {
    const double copying = copied_bytes > 0 ? static_cast<double>(copied_bytes) / rate : 0;
    return (1 - share) * (computing + problem.copy_slowdown * copying) + share * copying;
  };
  return mixed(choice.forward_seconds, problem.to_host_rate, mixture.forward) +
         mixed(choice.backward_seconds, problem.to_device_rate, mixture.backward);
}

std::uint64_t least_own_bytes(const Choices& choices) {
  return std::ranges::min_element(choices, {}, &Choice::own_bytes)->own_bytes();
}

// What a choice keeps, and what is on its way from it, is there while the next region runs. What the last one
// offloads is never copied, so its part is computing alone.
Relaxed relax(const Problem& problem, std::size_t number, std::uint64_t budget, Mixture mixture) {
  const bool is_last = number + 1 == problem.regions.size();
  const std::uint64_t next_bytes = is_last ? 0 : least_own_bytes(*problem.regions[number + 1]);
  std::vector<Corner> corners;
  Relaxed relaxed;
  for (const Choice& choice : *problem.regions[number]) {
    const std::uint64_t copied = is_last ? 0 : choice.offloaded_bytes;
    const std::uint64_t needed = std::max(choice.own_bytes(), choice.kept_bytes + copied + next_bytes);
    if (needed > budget) continue;
    const double seconds = mixed_seconds(problem, choice, copied, mixture);
    relaxed.needs.push_back({needed, seconds});
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

bool has_offload(const Problem& problem) {
  return std::ranges::any_of(problem.regions, [](const auto& choices) {
    return std::ranges::any_of(*choices, [](const Choice& choice) { return choice.offloaded_bytes > 0; });
  });
}

// Of the regions, for one mixture.
double bound_of_regions(const Problem& problem, std::uint64_t budget_bytes, Mixture mixture) {
  Passed passed;
  double fastest = 0, extra = 0;
  std::uint64_t kept_at_least = 0;  // by the regions passed
  for (std::size_t i = 0; i < problem.regions.size(); ++i) {
    if (kept_at_least > budget_bytes) return kInfinity;
    const Relaxed region = relax(problem, i, budget_bytes - kept_at_least, mixture);
    if (region.corners.empty()) return kInfinity;
    extra = std::max(extra, extra_seconds(passed, region, budget_bytes));
    fastest += region.fastest();
    kept_at_least += region.corners.front().kept_bytes;
    passed.add(region);
  }
  return fastest + std::max(extra, passed.extra_seconds(budget_bytes));
}

}  // namespace

double lower_bound(const Problem& problem, std::uint64_t budget_bytes) {
  if (budget_bytes < problem.floor_bytes) return kInfinity;
  double regions = 0;
  if (has_offload(problem)) {
    for (const double forward : {0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0})
      for (const double backward : {0.0, 0.25, 0.5, 0.75, 1.0})
        regions = std::max(regions, bound_of_regions(problem, budget_bytes, {forward, backward}));
  } else {
    regions = bound_of_regions(problem, budget_bytes, {});
  }
  constexpr double kRounding = 1 - 1e-12;
  return (problem.fixed_seconds + problem.passes * regions) * kRounding;
}

}  // namespace snug::plan
