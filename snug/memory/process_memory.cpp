#include "snug/memory/process_memory.h"

#include <unistd.h>

#include <fstream>

#include "snug/hooks/device.h"
#include "snug/memory/cuda_process_memory.h"

namespace snug::memory {

ProcessMemory process_memory(c10::Device device, std::uint64_t live_bytes) {
  if (device.is_cuda()) return cuda_process_memory(hooks::with_index(device).index());
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return {.allocated_bytes = live_bytes,
          .reserved_bytes = live_bytes,
          .process_bytes = resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)),
          .source = "resident set"};
}

}  // namespace snug::memory
