// What a kernel's tensors hold. Torch-free, as all kernels are.
#pragma once

namespace snug::ops {

enum class KernelDtype { Float, BFloat16, Half };

}  // namespace snug::ops
