// Internal to ops.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

namespace snug::ops {

// Of the type in which sums over elements like these are made: fp32 for 16 bits.
inline at::TensorOptions wide_options(const at::Tensor& like) {
  return like.options().dtype(at::toOpMathType(like.scalar_type()));
}

}  // namespace snug::ops
