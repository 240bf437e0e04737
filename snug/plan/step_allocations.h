// The allocations and frees of steps under any fates, one by one and in their order, from a sketch alone:
// what an allocator makes of a step is known without running it.
//
//   AllocatorReplay replay({.expandable_segments = true});
//   replay_steps(timeline, fates, {.count = 2}, replay);
//   replay.allocator().peak_reserved_bytes();
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/timeline.h"
#include "snug/trace/allocator_layout.h"
#include "snug/trace/trace.h"

namespace snug::plan {

// Which steps of a run: the first, number 0, makes what is there before it; each further one begins with what
// the last one left.
struct StepRange {
  int first = 0;
  int count = 2;
  bool is_new = false;  // the run: its first step does not find what one would have left
};

// Until they repeat: gradients that a step leaves lie elsewhere after each of the first ones.
SNUG_API int steps_to_settle(bool leaves_gradients);

// Writes an Alloc or a Free for each. `fates` has an entry for each call of the sketch, with one fate per
// value of its tape.
SNUG_API void replay_steps(const Timeline& timeline, std::span<const std::vector<Fate>> fates,
                           StepRange steps, trace::EventSink& sink);

// What is there, in the words of replay_steps: its blocks are those that the first step of such a run left.
// `left`: which block of the sketch is which in the layout's account, as far as they still live. Of the rest,
// blocks of the same size stand for one another.
SNUG_API trace::AllocatorLayout as_left_by(const Sketch& sketch,
                                           const std::unordered_map<trace::BlockId, std::uint32_t>& left,
                                           trace::AllocatorLayout layout);

}  // namespace snug::plan
