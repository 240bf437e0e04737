// A device made ready for snug: before anything is made on it.
#pragma once

#include <c10/core/Device.h>

#include "snug/base/export.h"

namespace snug::machine {

// On CUDA: notes what others hold before this process has a context there, and makes one. Throws Error if
// this build has no kernels for it.
SNUG_API void prepare(c10::Device device);

}  // namespace snug::machine
