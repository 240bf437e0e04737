// Where the gradient of an input may be added at once, instead of being handed to autograd to be added there:
// a sum inside a matrix product costs no buffer and no pass over memory. Internal to ops.
//
// Only in a backward() that nobody watches: not under autograd::grad() or backward(inputs), not with
// create_graph, not if the parameter has hooks that want to see the gradient, not across streams. Two
// backwards at once, on two threads, into one parameter are not guarded against, as autograd would.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace snug::ops {

struct GradientTarget {
  at::Tensor sum;                       // what there is already; else undefined
  std::optional<at::ScalarType> dtype;  // that a first gradient should have; none: as it comes
};

// Of input `number` of the node that is running its backward.
GradientTarget gradient_target(std::size_t number);

}  // namespace snug::ops
