// What one region adds to the chain: the arithmetic that evaluate() and search() share, so that they agree to
// the byte.
//
// Bytes are whole: what the link moves during a region is rounded down, so that queues are never too short.
// Every number of the new state rises with every number of the old one; the search relies on that.
#pragma once

#include <cstdint>

#include "snug/plan/problem.h"

namespace snug::plan {

struct ChainStep {
  Choice choice;
  std::uint64_t sent_bytes = 0;     // what the link can move to the host during its forward
  std::uint64_t fetched_bytes = 0;  // what the link can bring back during its backward
  double seconds = 0;               // both directions
};

// Between two regions. `lead` counts what must be back on the device when the backward comes here.
struct ChainState {
  std::uint64_t kept_bytes = 0;
  std::uint64_t queued_bytes = 0;
  std::uint64_t lead_bytes = 0;
  std::uint64_t peak_bytes = 0;
  double seconds = 0;
};

// Throws Error for a choice that offloads without a link, and for times that are not finite or below 0.
ChainStep chain_step(const Problem& problem, const Choice& choice);

ChainState advance(const ChainState& before, const ChainStep& step);

// Note [The turn]
// Where the forward ends and the backward begins, all that is kept is there, together with what still waits
// for the link to the host, or with the lead of the regions before the last one. What the last region itself
// has offloaded is in its backward_bytes.
Outcome finish(const Problem& problem, const ChainState& end, const ChainStep& last);

}  // namespace snug::plan
