#include "snug/memory/cuda_process_memory.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/memory/cuda_stats.h"
#include "snug/memory/nvml.h"

namespace snug::memory {

namespace {

struct Before {
  bool known = false;
  std::uint64_t used = 0;
};
std::array<Before, 64>& before_context() {
  static std::array<Before, 64> used;
  return used;
}

std::string pci_bus_id(c10::DeviceIndex device) {
  std::array<char, 32> id{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), id.size(), device));
  return id.data();
}

}  // namespace

void note_memory_before_context(c10::DeviceIndex device) {
  Before& before = before_context().at(device);
  if (before.known) return;  // by now our own context is there
  if (auto used = nvml_used_bytes(pci_bus_id(device))) before = {true, *used};
}

ProcessMemory cuda_process_memory(c10::DeviceIndex device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  ProcessMemory memory{.allocated_bytes = current_bytes(stats.allocated_bytes),
                       .reserved_bytes = current_bytes(stats.reserved_bytes),
                       .retries = stats.num_alloc_retries};
  if (auto own = nvml_process_bytes(pci_bus_id(device))) {
    memory.process_bytes = *own;
    memory.source = "driver, this process";
    return memory;
  }
  const CudaDevice whole = cuda_device(device);
  const Before& before = before_context().at(device);
  const std::uint64_t used = whole.memory_bytes - whole.free_bytes;
  memory.process_bytes = used - (before.known ? std::min(before.used, used) : 0);
  memory.source = before.known ? "driver, whole device less what was used before" : "driver, whole device";
  return memory;
}

CudaDevice cuda_device(c10::DeviceIndex device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {properties.name, total, free};
}

std::string why_no_cuda_device() {
  int count = 0, has = 0, needs = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&has);
  cudaRuntimeGetVersion(&needs);
  const auto version = [](int number) { return concat("CUDA ", number / 1000, ".", number % 1000 / 10); };
  std::string why = cudaGetErrorString(error);
  if (has == 0) why = "no NVIDIA driver is installed";
  if (has > 0 && error == cudaErrorInsufficientDriver)
    why = concat("the driver is too old: it knows ", version(has), ", and ", version(needs), " is needed");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible ? concat(why, " (CUDA_VISIBLE_DEVICES is \"", visible, "\")") : why;
}

bool let_cuda_segments_grow(bool grow) {
  const bool before = c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
  if (!std::getenv("PYTORCH_ALLOC_CONF") && !std::getenv("PYTORCH_CUDA_ALLOC_CONF"))
    c10::CachingAllocator::setAllocatorSettings(grow ? "expandable_segments:True"
                                                     : "expandable_segments:False");
  return before;
}

void cap_cuda_allocator(c10::DeviceIndex device, std::optional<std::uint64_t> bytes) {
  const auto total = static_cast<double>(cuda_device(device).memory_bytes);
  constexpr double kRounding = 4096;  // torch multiplies again; far below the pages it takes
  const double fraction = bytes ? (static_cast<double>(*bytes) + kRounding) / total : 1;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(fraction, 1.0), device);
}

void empty_cuda_cache() {
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace snug::memory
