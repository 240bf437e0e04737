// checksum_cuda.cpp, or no_cuda_checksum.cpp. Internal to tape.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

namespace snug::tape {

// On the current stream of the device.
void add_checksum_on_cuda(c10::Device device, const void* bytes, std::size_t count, std::uint64_t* sum);

}  // namespace snug::tape
