// A product by ATen's operators, for what cuBLASLt is not asked. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::ops {

inline void product_by_aten(at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                            const std::optional<at::Tensor>& bias, bool adds) {
  const bool is_one_type = out.scalar_type() == left.scalar_type();
  // Of halves into fp32 only cuBLAS goes at once.
  const bool widens = out.scalar_type() == at::kFloat && left.is_cuda();
  if (adds) {
    if (is_one_type)
      out.addmm_(left, right);
    else if (widens)
      at::addmm_out(out, out, left, right, out.scalar_type());
    else
      out.add_(at::mm(left, right));
  } else if (bias) {
    at::addmm_out(out, *bias, left, right);
  } else if (is_one_type) {
    at::mm_out(out, left, right);
  } else if (widens) {
    at::mm_out(out, left, right, out.scalar_type());
  } else {
    out.copy_(at::mm(left, right));
  }
}

}  // namespace snug::ops
