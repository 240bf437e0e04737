#include "snug/hooks/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace snug::hooks {

c10::Device with_index(c10::Device device) {
  if (!device.is_cuda() || device.has_index()) return device;
  const c10::Device first(c10::kCUDA, 0);  // where there is none: whoever uses it will say so
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return first;
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  return cuda.deviceCount() > 0 ? cuda.getDevice() : first;
}

}  // namespace snug::hooks
