// What a kernel's tensors hold and how they lie. Torch-free, as all kernels are.
#pragma once

#include <cstdint>

namespace snug::ops {

enum class KernelDtype { Float, BFloat16, Half };

// For vectors of sixteen bytes.
inline bool is_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

}  // namespace snug::ops
