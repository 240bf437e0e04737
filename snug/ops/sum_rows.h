// The sum of a matrix's rows, a bias's gradient. On CUDA it takes 1 MiB for a while; at::sum takes up to half
// as much as it is given.
#pragma once

#include <ATen/core/Tensor.h>

#include "snug/base/export.h"

namespace snug::ops {

SNUG_API at::Tensor sum_rows(const at::Tensor& matrix, at::ScalarType dtype);  // of the result

}  // namespace snug::ops
