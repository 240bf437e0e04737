// The search's labels: ways to run the first regions, of which only those that may still become the best
// stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/plan/chain_step.h"

namespace snug::plan {

struct Label {
  ChainState state;  // peak_bytes: no completion stays below
  std::uint32_t parent = 0;
  std::uint32_t choice = 0;
};

// Drops every label that another one is at least as good as in all respects.
void drop_dominated(std::vector<Label>& labels);

// Leaves no more than `most` labels, at least 2. The fastest stays, those with the lowest peaks stay, and the
// best of each group of similar ones. No budget plays a part, so what is left serves them all.
void thin(std::vector<Label>& labels, std::size_t most);

}  // namespace snug::plan
