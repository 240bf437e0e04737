// embedding on CUDA: torch's forward; for the backward sorts tokens, and allocates what embedding_cuda.cu
// fills.
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>
#include <optional>

#include "snug/ops/cuda_launch.h"
#include "snug/ops/embedding_kernel.h"

namespace snug::ops {
namespace {

at::Tensor embedding_cuda(const at::Tensor& weight, const at::Tensor& tokens) {
  kernel_dtype("embedding", weight);
  return at::embedding(weight, tokens);
}

at::Tensor embedding_backward_cuda(const at::Tensor& grad_out, const at::Tensor& tokens, std::int64_t rows) {
  const std::int64_t count = tokens.numel(), hidden = grad_out.size(-1);
  check(count <= std::numeric_limits<int>::max(), "embedding on CUDA takes at most 2^31 - 1 tokens, got ",
        count);
  check(hidden <= kEmbeddingMostHidden, "embedding on CUDA takes rows of at most ", kEmbeddingMostHidden,
        " elements, got ", hidden);
  const KernelDtype dtype = kernel_dtype("embedding", grad_out);
  at::Tensor grad_weight = at::zeros({rows, hidden}, grad_out.options());
  const auto [sorted, order] = at::sort(tokens.view({-1}).to(at::kLong), /*stable=*/std::optional(true),
                                        /*dim=*/0, /*descending=*/false);
  const std::int64_t chunks = (count + kEmbeddingChunk - 1) / kEmbeddingChunk;
  const at::Tensor partial = at::empty({chunks, 2, hidden}, grad_out.options().dtype(at::kFloat));
  launch_on(grad_out, EmbeddingBackward{.grad_out = grad_out.const_data_ptr(),
                                        .tokens = sorted.const_data_ptr<std::int64_t>(),
                                        .order = order.const_data_ptr<std::int64_t>(),
                                        .grad_weight = grad_weight.mutable_data_ptr(),
                                        .partial = partial.mutable_data_ptr<float>(),
                                        .count = count,
                                        .rows = rows,
                                        .hidden = hidden,
                                        .dtype = dtype});
  return grad_weight;
}

TORCH_LIBRARY_IMPL(snug, CUDA, library) {
  library.impl("embedding", TORCH_FN(embedding_cuda));
  library.impl("embedding_backward", TORCH_FN(embedding_backward_cuda));
}

}  // namespace
}  // namespace snug::ops
