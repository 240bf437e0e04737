// Which region a node of the backward comes from. Internal to hooks.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "snug/hooks/region.h"

namespace snug::hooks {

// Note [Regions in the backward]
// Autograd stamps every node with the thread that made it and a number that grows with every node of that
// thread. A region's forward is therefore a range of numbers: each thread keeps the list of (first number,
// region) at every change of region. In the backward a RecordFunction callback sees each node just before it
// runs and looks it up. AccumulateGrad nodes carry no such number; they count where their parameter is bound,
// else where the gradient came from.

// Nodes that this thread makes from here on are of that region. Returns whose they were before.
RegionId begin_range(RegionId id);

bool is_accumulation(const torch::autograd::Node& node);
// `before`: of the node that ran before it.
RegionId region_of(const torch::autograd::Node& node, RegionId before);

}  // namespace snug::hooks
