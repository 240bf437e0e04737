#include "snug/memory/cuda_process_memory.h"

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/memory/cuda_stats.h"
#include "snug/memory/nvml.h"

namespace snug::memory {

namespace {

std::optional<NvmlMemory>& before_context(c10::DeviceIndex device) {
  static std::array<std::optional<NvmlMemory>, 64> before;
  return before.at(device);
}

std::string pci_bus_id(c10::DeviceIndex device) {
  std::array<char, 32> id{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), id.size(), device));
  return id.data();
}

}  // namespace

void note_memory_before_context(c10::DeviceIndex device) {
  std::optional<NvmlMemory>& before = before_context(device);
  if (before) return;  // by now our own context is there
  const auto now = nvml_memory(pci_bus_id(device));
  // Later than that it helps only where the driver says what is ours.
  if (now && (now->own || !c10::cuda::hasPrimaryContext(device))) before = now;
}

ProcessMemory cuda_process_memory(c10::DeviceIndex device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  ProcessMemory memory{.allocated_bytes = current_bytes(stats.allocated_bytes),
                       .reserved_bytes = current_bytes(stats.reserved_bytes),
                       .peak_reserved_bytes = peak_bytes(stats.reserved_bytes),
                       .retries = stats.num_alloc_retries};
  note_memory_before_context(device);
  const auto now = nvml_memory(pci_bus_id(device));
  if (const auto& before = before_context(device); now && before) {
    memory.process_bytes = seen_from_outside(*before, *now);
    memory.source = now->own ? "driver, this process" : "driver, whole device less what was used before";
    return memory;
  }
  const CudaDevice whole = cuda_device(device);
  memory.process_bytes = whole.memory_bytes - whole.free_bytes;
  memory.source = "driver, whole device";
  return memory;
}

CudaDevice cuda_device(c10::DeviceIndex device) {
  note_memory_before_context(device);  // which what follows makes
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {properties.name, total, free, properties.integrated != 0};
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

double cuda_allocator_share(c10::DeviceIndex device) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return c10::cuda::CUDACachingAllocator::getMemoryFraction(device);
}

void cap_cuda_allocator(c10::DeviceIndex device, double share) {
  c10::cuda::CUDACachingAllocator::setMemoryFraction(share, device);
}

void empty_cuda_cache() {
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace snug::memory
