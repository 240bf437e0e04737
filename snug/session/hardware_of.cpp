#include "snug/session/hardware_of.h"

#include <ATen/Context.h>

#include <algorithm>

#include "snug/memory/process_memory.h"

namespace snug::session {

plan::Hardware hardware_of(c10::Device device) {
  if (!device.is_cuda()) return plan::preset("cpu");
  if (!at::hasCUDA()) return plan::preset("h200");  // planned for, not here
  const memory::CudaDevice here = memory::cuda_device(std::max<c10::DeviceIndex>(device.index(), 0));
  return plan::preset_like(here.name, here.memory_bytes);
}

}  // namespace snug::session
