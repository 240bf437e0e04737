// What a Python autograd Function was given and what it made are kept, not recomputed: kernels that it
// launches itself may write there, and no operator tells of it. Unless you say that it does not:
//
//   snug::tape::pure("MySwiGLU");
//
// that is, its forward writes nothing but by operators, or into what it allocates with empty().
#pragma once

#include <string_view>

#include "snug/base/export.h"

namespace snug::tape {

SNUG_API void pure(std::string_view name);  // of the class
SNUG_API bool is_pure(std::string_view name);

}  // namespace snug::tape
