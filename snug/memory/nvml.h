// The driver's own view of GPU memory, through libnvidia-ml if it is there. Internal to memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace snug::memory {

std::optional<std::uint64_t> nvml_used_bytes(const std::string& pci_bus_id);  // by everyone on the device
std::optional<std::uint64_t> nvml_process_bytes(
    const std::string& pci_bus_id);  // by us; nothing if our pid is not listed

}  // namespace snug::memory
