// The matrix products of the operators. On CUDA in 16 bits by cuBLASLt, with the algorithm that
// product_choices.h has for them; elsewhere by ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "snug/base/export.h"

namespace snug::ops {

// cuBLAS takes its fast kernels where sizes and addresses are multiples of this.
inline constexpr std::int64_t kProductAlignment = 16;  // bytes

// left @ right for matrices, + bias [columns] in every row.
SNUG_API at::Tensor product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias = {});

// The same, as the type `dtype`: fp32 of 16-bit factors is rounded once.
SNUG_API at::Tensor product_as(at::ScalarType dtype, const at::Tensor& left, const at::Tensor& right);

// Into `out`, which lies as it will, or added to it.
SNUG_API void product_into(at::Tensor& out, const at::Tensor& left, const at::Tensor& right);
SNUG_API void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

}  // namespace snug::ops
