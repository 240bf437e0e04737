// Ways to choose the fates of a region's values, from all kept to all recomputed.
//
// Each is the best there is for some price of memory: a minimum cut between what is saved and what is there
// anyway finds it, whatever the region computes. Between them lie their neighbours, one operation apart.
#pragma once

#include <span>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/timeline.h"

namespace snug::plan {

// By value of the call's tape. The first keeps everything. `seconds`: by operation of the tape.
SNUG_API std::vector<std::vector<Fate>> region_choices(const Timeline& timeline, std::size_t call,
                                                       std::span<const double> seconds);

}  // namespace snug::plan
