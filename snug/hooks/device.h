// Which GPU is meant.
#pragma once

#include <c10/core/Device.h>

#include "snug/base/export.h"

namespace snug::hooks {

// `cuda` without an index is the current device of this thread, as for torch's factories: cuda:1 after
// c10::cuda::set_device(1). Everything else is what it is. Makes no context.
SNUG_API c10::Device with_index(c10::Device device);

}  // namespace snug::hooks
