// The CUDA part of process_memory.h. Internal to memory. cuda_process_memory.cpp, or
// no_cuda_process_memory.cpp.
#pragma once

#include "snug/memory/process_memory.h"

namespace snug::memory {

ProcessMemory cuda_process_memory(c10::DeviceIndex device);

}  // namespace snug::memory
