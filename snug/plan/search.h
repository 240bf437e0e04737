// Every plan worth having, for every budget at once.
//
//   const Frontier frontier = search(problem);
//   if (const Point* point = best(frontier, budget)) apply(point->chosen);
//
// A plan is worth having if no other one is as fast with a lower peak. So more memory never makes a slower
// plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/problem.h"

namespace snug::plan {

struct SearchOptions {
  // Partial plans held at once; the result is exact as long as no region needs more. At 2000, 34 regions of
  // 16 choices take about 0.05 s, 0.1 s with offloading.
  std::size_t most_labels = 2000;
};

struct Point {
  std::uint64_t peak_bytes = 0;
  double seconds = 0;
  std::vector<std::uint32_t> chosen;  // for evaluate(), which gives exactly this peak and these seconds
};

using Frontier = std::vector<Point>;  // by rising peak and strictly falling seconds

SNUG_API Frontier search(const Problem& problem, const SearchOptions& options = {});

// The fastest that fits; null if none does. Points into the frontier.
SNUG_API const Point* best(const Frontier& frontier, std::uint64_t budget_bytes);

}  // namespace snug::plan
