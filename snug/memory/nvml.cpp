#include "snug/memory/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

namespace snug::memory {

namespace {

// The few declarations of nvml.h (ABI of version 12 and 13) that are needed: toolkits do not always ship the
// header.
constexpr int kSuccess = 0;
constexpr unsigned long long kNotAvailable = ~0ULL;
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
using Device = void*;

// Loaded at run time: the library comes with the driver, and a machine that only compiles has none.
struct Nvml {
  int (*handle)(const char*, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    if (!init || init() != kSuccess) return;
    handle = reinterpret_cast<decltype(handle)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    memory = reinterpret_cast<decltype(memory)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
    processes =
        reinterpret_cast<decltype(processes)>(dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
  }

  std::optional<Device> device(const std::string& pci_bus_id) const {
    Device found{};
    if (!handle || handle(pci_bus_id.c_str(), &found) != kSuccess) return std::nullopt;
    return found;
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

}  // namespace

std::optional<std::uint64_t> nvml_used_bytes(const std::string& pci_bus_id) {
  const auto device = nvml().device(pci_bus_id);
  Memory memory{};
  if (!device || !nvml().memory || nvml().memory(*device, &memory) != kSuccess) return std::nullopt;
  return memory.used;
}

std::optional<std::uint64_t> nvml_process_bytes(const std::string& pci_bus_id) {
  const auto device = nvml().device(pci_bus_id);
  if (!device || !nvml().processes) return std::nullopt;
  unsigned count = 64;
  std::vector<ProcessInfo> list(count);
  if (nvml().processes(*device, &count, list.data()) != kSuccess) return std::nullopt;
  for (unsigned i = 0; i < count; ++i)
    if (list[i].pid == static_cast<unsigned>(getpid()) && list[i].used_bytes != kNotAvailable)
      return list[i].used_bytes;
  return std::nullopt;
}

}  // namespace snug::memory
