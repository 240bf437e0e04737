// What one region adds to the chain: the arithmetic that evaluate() and search() share, so that they agree to
// the byte.
//
// Every number of the new state rises with every number of the old one; the search relies on that.
#pragma once

#include <cstdint>

#include "snug/plan/problem.h"

namespace snug::plan {

// Between two regions. Copies that are sure to come have slowed down what computes beside them: of two ways
// that are equal but for that, the one without them is the faster.
struct ChainState {
  std::uint64_t kept_bytes = 0;
  std::uint64_t moving_bytes = 0;  // of the region before: on their way to the host, and back
  std::uint64_t peak_bytes = 0;
  double seconds = 0;
};

// Throws Error for a choice that offloads without a link, and for times that are not finite or below 0.
void check_choice(const Problem& problem, const Choice& choice);

ChainState advance(const Problem& problem, const ChainState& before, const Choice& choice);

// Where the forward ends and the backward begins, all that is kept is there, and what the last region
// offloaded: nobody lets it leave.
Outcome finish(const Problem& problem, const ChainState& end);

}  // namespace snug::plan
