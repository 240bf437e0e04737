// Operators of your own may be run again in the backward only if you say that they can: the same arguments
// give the same bits, and nothing else happens.
//
//   snug::tape::replayable("mylib::swiglu");
#pragma once

#include <string_view>

#include "snug/base/export.h"

namespace snug::tape {

SNUG_API void replayable(std::string_view name);  // without the overload

}  // namespace snug::tape
