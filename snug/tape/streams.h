// Streams of a device, whichever it is. Internal to tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <optional>

namespace snug::tape {

std::optional<c10::Stream> current_stream(c10::Device device);  // none on CPU and Meta
// On which the tensor was made, as far as autograd knows.
std::optional<c10::Stream> made_stream(const at::Tensor& tensor);

void wait_for(c10::Stream other);  // the current stream of its device does
// And the storage is not used for another before the current stream is done with it.
void wait_for(c10::Stream made_on, const c10::Storage& storage);

}  // namespace snug::tape
