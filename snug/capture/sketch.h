// Runs a step on Meta in which nothing is kept for the backward, for the planner: see trace/sketch.h.
//
//   trace::Sketch sketch = capture::sketch([&](memory::Tracker& tracker) {
//     auto model = on_meta([&] { return MyModel(options); });
//     tracker.adopt(model->parameters(), trace::Category::Parameter);
//     model->loss(tokens).backward();
//   });
#pragma once

#include <cstdint>
#include <functional>

#include "snug/base/export.h"
#include "snug/memory/tracker.h"
#include "snug/trace/sketch.h"

namespace snug::capture {

// Throws Error if the graph of a region is still there when `run` returns. Errors otherwise as in capture().
// `workspaces` as in CaptureOptions, `rest` as in RecordingOptions.
SNUG_API trace::Sketch sketch(const std::function<void(memory::Tracker&)>& run, bool workspaces = true,
                              bool rest = false);

struct StepToSketch {
  std::function<void()> run;
  bool leaves_some = false;                        // for the next one, as gradients whose update waits
  std::function<std::uint64_t()> host_bytes = {};  // that it has on the host by now
};

// The same of a step that `set_up` builds and returns. One that leaves some, or more than it found, such as
// an optimizer's states, is run twice, and the second is what is sketched.
SNUG_API trace::Sketch sketch_step(const std::function<StepToSketch(memory::Tracker&)>& set_up,
                                   bool workspaces = true, bool rest = false);

}  // namespace snug::capture
