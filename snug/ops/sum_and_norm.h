// What norms with a residual before them share.
#pragma once

#include <ATen/core/Tensor.h>

#include "snug/base/error.h"

namespace snug::ops {

// Of a residual's sum and its norm, made in one pass.
struct SumAndNorm {
  at::Tensor sum, out;
};

inline void check_residual(const char* op, const at::Tensor& x, const at::Tensor& residual) {
  check(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type() &&
            x.device() == residual.device(),
        op, ": expected a residual like x, ", x.sizes(), " ", x.scalar_type(), " on ", x.device(), ", got ",
        residual.sizes(), " ", residual.scalar_type(), " on ", residual.device());
}

}  // namespace snug::ops
