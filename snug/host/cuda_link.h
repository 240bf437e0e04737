#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "snug/host/link.h"

namespace snug::host {

// The one link of that GPU, made when it is first asked for; without an index that of the current one. Throws
// Error where there is no such GPU, or in a build without CUDA.
std::shared_ptr<Link> open_cuda_link(c10::DeviceIndex device);

}  // namespace snug::host
