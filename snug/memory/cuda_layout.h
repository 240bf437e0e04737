// Internal to memory.
#pragma once

#include <c10/core/Device.h>

#include "snug/trace/allocator_layout.h"

namespace snug::memory {

// As the current stream sees it: what lies in segments of other streams or pools counts as taken. Blocks have
// no ids.
trace::AllocatorLayout cuda_layout(c10::DeviceIndex device);

}  // namespace snug::memory
