// The largest single request to operator new, which shows a reader that believes a lying length.
#pragma once

#include <cstddef>

namespace snug::testing {

// The largest since the last call.
std::size_t take_largest_allocation();

}  // namespace snug::testing
