// Whether snug's own CUDA code was compiled for a given GPU. Free of torch, so that it can be asked before
// anything else.
#pragma once

#include <string>

#include "snug/base/export.h"

namespace snug::ops {

// Empty if there is code for this GPU, else a sentence that names the GPU and what to build with.
SNUG_API std::string missing_kernel_image(int device);

}  // namespace snug::ops
