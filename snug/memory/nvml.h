// The driver's own view of GPU memory, through libnvidia-ml if it is there. Internal to memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace snug::memory {

struct NvmlMemory {
  std::uint64_t used = 0;            // by everyone on the device
  std::optional<std::uint64_t> own;  // named as ours; nothing if our pid is not listed, as in most containers
  std::uint64_t others = 0;          // named as other processes'
};

std::optional<NvmlMemory> nvml_memory(const std::string& pci_bus_id);

// Note [Seen from outside]
// The driver uses memory for a process that it does not name as the process's: 9 MiB on an H200, and page
// tables of pinned host memory, 2 MiB per GiB. A budget is to hold for who looks at the device, so what
// counts is by how much the used memory grew since `before`, when this process had no context or `before.own`
// in it, less what other processes took meanwhile. Who they are is known only where we are named too.
inline std::uint64_t seen_from_outside(const NvmlMemory& before, const NvmlMemory& now) {
  const auto below = [](std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; };
  const auto not_others = [&](const NvmlMemory& memory) {
    return now.own ? below(memory.used, memory.others) : memory.used;
  };
  const std::uint64_t not_ours = below(not_others(before), before.own.value_or(0));
  return std::max(now.own.value_or(0), below(not_others(now), not_ours));
}

}  // namespace snug::memory
