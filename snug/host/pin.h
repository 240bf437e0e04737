// Memory that the GPU may copy to and from by itself.
#pragma once

#include <cstdint>

namespace snug::host {

// Throws Error where nothing can be pinned: no GPU, or a build without CUDA.
void check_can_pin();
// The pages should have been touched: pinning is the slower part otherwise.
void pin(void* data, std::uint64_t bytes);
void unpin(void* data) noexcept;

}  // namespace snug::host
