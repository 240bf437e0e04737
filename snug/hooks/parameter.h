// Internal to the library.
#pragma once

#include <ATen/core/Tensor.h>

namespace snug::hooks {

// A leaf that wants a gradient, or a view of one.
inline bool is_parameter(const at::Tensor& tensor) {
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return base.is_leaf() && base.requires_grad();
}

}  // namespace snug::hooks
