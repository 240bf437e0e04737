#include "snug/tape/streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace snug::tape {

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void wait_for(c10::Stream made_on, const c10::Storage& storage) {
  const c10::impl::VirtualGuardImpl device(made_on.device_type());
  const c10::Stream current = device.getStream(made_on.device());
  if (current == made_on) return;
  c10::Event made(made_on.device_type());
  made.record(made_on);
  made.block(current);
  device.recordDataPtrOnStream(storage.data_ptr(), current);
}

}  // namespace snug::tape
