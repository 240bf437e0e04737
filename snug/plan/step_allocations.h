// The allocations and frees of steps under any fates, one by one and in their order, from a sketch alone:
// what an allocator makes of a step is known without running it.
//
//   AllocatorReplay replay({.expandable_segments = true});
//   replay_steps(timeline, fates, 2, replay);
//   replay.allocator().peak_reserved_bytes();
#pragma once

#include <span>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/timeline.h"
#include "snug/trace/trace.h"

namespace snug::plan {

// Writes an Alloc or a Free for each. `fates` has an entry for each call of the sketch, with one fate per
// value of its tape. The first step begins with what is made before it, each further one with what the last
// one left.
SNUG_API void replay_steps(const Timeline& timeline, std::span<const std::vector<Fate>> fates, int steps,
                           trace::EventSink& sink);

}  // namespace snug::plan
