// Products by ATen's operators, for what cuBLASLt is not asked. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::ops {

// Of halves into fp32: only cuBLAS does so at once.
inline bool widens_at_once(const at::Tensor& factor) {
  return factor.is_cuda() && at::isReducedFloatingType(factor.scalar_type());
}

inline at::Tensor product_by_aten(const at::Tensor& left, const at::Tensor& right,
                                  const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  if (bias) return at::addmm(*bias, left, right);
  if (dtype == left.scalar_type()) return at::mm(left, right);
  return widens_at_once(left) ? at::mm(left, right, dtype) : at::mm(left, right).to(dtype);
}

inline void product_by_aten_(at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  if (out.scalar_type() == left.scalar_type())
    adds ? static_cast<void>(out.addmm_(left, right)) : static_cast<void>(at::mm_out(out, left, right));
  else if (widens_at_once(left) && out.scalar_type() == at::kFloat)
    adds ? at::addmm_out(out, out, left, right, out.scalar_type())
         : at::mm_out(out, left, right, out.scalar_type());
  else
    adds ? out.add_(at::mm(left, right)) : out.copy_(at::mm(left, right));
}

}  // namespace snug::ops
