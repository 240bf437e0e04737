// What it costs that something waits on the host between steps: the link there, and an update's time.
#pragma once

#include <cstdint>

#include "snug/base/export.h"
#include "snug/plan/collectives.h"
#include "snug/plan/hardware.h"
#include "snug/plan/setting.h"

namespace snug::plan {

// To the host and back, and to other ranks. Without rates to the host nothing is offloaded.
struct Links {
  double to_host_rate = 0, to_device_rate = 0;
  double both_ways_rate = 0;  // of both together, both at work; 0: one at a time
  double copy_slowdown = 0;
  double adam_rate = 0;          // parameters per second that the host steps
  std::uint64_t host_bytes = 0;  // that may be used
  PeerLinks peers = {};

  bool are_there() const { return to_host_rate > 0 && to_device_rate > 0; }
};

SNUG_API Links links_of(const Hardware& hardware);  // four fifths of its host memory

// That an update's copies take with both directions at work and nothing in their way; 0 if nobody measured
// the link.
SNUG_API double copying_seconds(const Streamed& streamed, const Links& links);
// That an update takes with nothing beside it, whose copies and steps by the host are side by side.
SNUG_API double streaming_seconds(const Streamed& streamed, const Links& links);

// An update beside a forward or backward of so many seconds and regions.
struct UpdateBeside {
  double slowed = 0;  // by so much is the pass slower
  double left = 0;    // of the update, when the pass is over or has to wait
};
SNUG_API UpdateBeside update_beside(const Streamed& streamed, const Links& links, double seconds,
                                    std::size_t regions);

// Of parameters that stream so many bytes each, in and out together, the share that the host has stepped
// when the others are through.
SNUG_API double balanced_share(double streamed_bytes, const Links& links);

}  // namespace snug::plan
