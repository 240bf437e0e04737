#include "snug/machine/prepare.h"

#include <ATen/Context.h>

#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/memory/process_memory.h"
#include "snug/ops/kernel_image.h"

namespace snug::machine {

void prepare(c10::Device device) {
  if (!device.is_cuda()) return;
  const c10::DeviceIndex index = hooks::with_index(device).index();
  memory::note_memory_before_context(index);
  const std::string missing = ops::missing_kernel_image(index);
  check(missing.empty(), missing);
  at::globalContext().lazyInitDevice(at::kCUDA);
}

}  // namespace snug::machine
