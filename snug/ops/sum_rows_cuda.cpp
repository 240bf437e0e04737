// sum_rows on CUDA: allocates what sum_rows_cuda.cu fills.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/sum_rows_kernel.h"
#include "snug/ops/sum_rows_strips.h"

namespace snug::ops {
namespace {

at::Tensor sum_rows_cuda(const at::Tensor& matrix, at::ScalarType dtype) {
  if (matrix.scalar_type() == at::kDouble) return at::sum(matrix, 0, /*keepdim=*/false, dtype);
  const c10::cuda::CUDAGuard guard(matrix.device());
  const at::Tensor rows = matrix.stride(1) == 1 ? matrix : matrix.contiguous();
  const std::int64_t strips = strips_of(rows.size(0), rows.size(1), processors_of_current_device());
  at::Tensor sum = at::empty({rows.size(1)}, rows.options().dtype(dtype));
  const at::Tensor partial = at::empty({strips, rows.size(1)}, rows.options().dtype(at::kFloat));
  launch_on(rows, SumRows{.matrix = rows.const_data_ptr(),
                          .rows = rows.size(0),
                          .columns = rows.size(1),
                          .row_stride = rows.stride(0),
                          .partial = partial.mutable_data_ptr<float>(),
                          .strips = static_cast<int>(strips),
                          .sum = sum.mutable_data_ptr(),
                          .dtype = kernel_dtype("sum_rows", rows),
                          .sum_dtype = kernel_dtype("sum_rows", sum)});
  return sum;
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("sum_rows", TORCH_FN(sum_rows_cuda));
}

}  // namespace
}  // namespace snug::ops
