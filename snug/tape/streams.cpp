#include "snug/tape/streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

namespace snug::tape {

std::optional<c10::Stream> current_stream(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

std::optional<c10::Stream> made_stream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return std::nullopt;
  if (const auto node = tensor.grad_fn())
    if (const auto stream = node->stream()) return stream;
  return current_stream(tensor.device());
}

void wait_for(c10::Stream other) {
  const c10::Stream current = c10::impl::VirtualGuardImpl(other.device_type()).getStream(other.device());
  if (current == other) return;
  c10::Event reached(other.device_type());
  reached.record(other);
  reached.block(current);
}

void wait_for(c10::Stream made_on, const c10::Storage& storage) {
  const c10::impl::VirtualGuardImpl device(made_on.device_type());
  const c10::Stream current = device.getStream(made_on.device());
  if (current == made_on) return;
  wait_for(made_on);
  device.recordDataPtrOnStream(storage.data_ptr(), current);
}

}  // namespace snug::tape
