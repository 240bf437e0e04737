#include "snug/memory/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
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
  using Processes = int (*)(Device, unsigned*, ProcessInfo*);
  Processes computing = nullptr, drawing = nullptr;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    if (!init || init() != kSuccess) return;
    handle = reinterpret_cast<decltype(handle)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
    memory = reinterpret_cast<decltype(memory)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
    computing = reinterpret_cast<Processes>(dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
    drawing = reinterpret_cast<Processes>(dlsym(library, "nvmlDeviceGetGraphicsRunningProcesses_v3"));
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

// By pid. One that computes and draws is in both lists.
void add_processes(Nvml::Processes list_processes, Device device, std::map<unsigned, std::uint64_t>& bytes) {
  if (!list_processes) return;
  unsigned count = 64;
  std::vector<ProcessInfo> list(count);
  if (list_processes(device, &count, list.data()) != kSuccess) return;
  for (unsigned i = 0; i < count; ++i)
    if (list[i].used_bytes != kNotAvailable) bytes[list[i].pid] = list[i].used_bytes;
}

}  // namespace

std::optional<NvmlMemory> nvml_memory(const std::string& pci_bus_id) {
  const auto device = nvml().device(pci_bus_id);
  Memory memory{};
  if (!device || !nvml().memory || nvml().memory(*device, &memory) != kSuccess) return std::nullopt;
  std::map<unsigned, std::uint64_t> processes;
  add_processes(nvml().drawing, *device, processes);
  add_processes(nvml().computing, *device, processes);
  NvmlMemory found{.used = memory.used};
  for (const auto& [pid, bytes] : processes) {
    if (pid == static_cast<unsigned>(getpid()))
      found.own = bytes;
    else
      found.others += bytes;
  }
  return found;
}

}  // namespace snug::memory
