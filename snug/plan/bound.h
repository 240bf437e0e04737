// How fast a plan can be at best, without searching: a certificate beside the plan that was found.
#pragma once

#include <cstdint>

#include "snug/base/export.h"
#include "snug/plan/problem.h"

namespace snug::plan {

// Seconds that no assignment with a peak within the budget can beat; infinity if surely none fits.
// Regions may mix their choices in any proportion, and offloading is free: the truth is somewhat slower.
SNUG_API double lower_bound(const Problem& problem, std::uint64_t budget_bytes);

}  // namespace snug::plan
