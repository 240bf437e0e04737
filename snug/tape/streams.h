// Streams of a device, whichever it is. Internal to tape.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <optional>

namespace snug::tape {

std::optional<c10::Stream> current_stream(c10::Device device);  // none on CPU and Meta

// The current stream waits for `made_on`, and the storage is not used for another before it is done.
void wait_for(c10::Stream made_on, const c10::Storage& storage);

}  // namespace snug::tape
