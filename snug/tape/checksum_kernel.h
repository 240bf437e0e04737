// Free of torch; internal to tape.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace snug::tape {

// Adds the checksum of the bytes to *sum, which is on the device.
cudaError_t add_checksum(const void* bytes, std::size_t count, std::uint64_t* sum, cudaStream_t stream);

}  // namespace snug::tape
