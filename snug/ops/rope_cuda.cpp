// Rotary positions on CUDA: allocates what rope_cuda.cu fills.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/rope_kernel.h"

namespace snug::ops {
namespace {

at::Tensor rope_cuda(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  const at::Tensor x = given.stride(3) == 1 ? given : given.contiguous();
  at::Tensor out = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  launch_on(x, Rope{.x = x.const_data_ptr(),
                    .cos = cos.const_data_ptr(),
                    .sin = sin.const_data_ptr(),
                    .out = out.mutable_data_ptr(),
                    .batch = x.size(0),
                    .heads = x.size(1),
                    .tokens = x.size(2),
                    .half = static_cast<int>(x.size(3) / 2),
                    .batch_stride = x.stride(0),
                    .head_stride = x.stride(1),
                    .token_stride = x.stride(2),
                    .inverse = inverse,
                    .dtype = kernel_dtype("rope", x)});
  return out;
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("rope", TORCH_FN(rope_cuda));
}

}  // namespace
}  // namespace snug::ops
