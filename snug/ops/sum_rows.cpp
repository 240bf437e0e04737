// Schema and front of sum_rows, and its kernels for CPU, ATen's own, and Meta. CUDA's is in sum_rows_cuda.cu.
#include "snug/ops/sum_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "snug/hooks/meta_target.h"
#include "snug/ops/operator.h"
#include "snug/ops/sum_rows_strips.h"

namespace snug::ops {
namespace {

at::Tensor sum_rows_by_aten(const at::Tensor& matrix, at::ScalarType dtype) {
  return at::sum(matrix, 0, /*keepdim=*/false, dtype);
}

at::Tensor sum_rows_meta(const at::Tensor& matrix, at::ScalarType dtype) {
  if (!hooks::meta_stands_for_cuda() || matrix.scalar_type() == at::kDouble)
    return sum_rows_by_aten(matrix, dtype);
  const at::Tensor rows = matrix.stride(1) == 1 ? matrix : matrix.contiguous();
  at::Tensor sum = at::empty({rows.size(1)}, rows.options().dtype(dtype));
  at::empty({strips_of(rows.size(0), rows.size(1), hooks::kMetaProcessors), rows.size(1)},
            rows.options().dtype(at::kFloat));
  return sum;
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("sum_rows(Tensor matrix, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("sum_rows", TORCH_FN(sum_rows_by_aten));
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("sum_rows", TORCH_FN(sum_rows_meta));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("sum_rows", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor sum_rows(const at::Tensor& matrix, at::ScalarType dtype) {
  static const auto op = find_operator<decltype(sum_rows)>("snug::sum_rows");
  return op.call(matrix, dtype);
}

}  // namespace snug::ops
