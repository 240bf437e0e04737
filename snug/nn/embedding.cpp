#include "snug/nn/embedding.h"

#include <ATen/ops/empty.h>

#include "snug/ops/embedding.h"

namespace snug::nn {

EmbeddingImpl::EmbeddingImpl(std::int64_t rows, std::int64_t hidden, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({rows, hidden}, options))) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& tokens) {
  return ops::embedding(weight, tokens);
}

}  // namespace snug::nn
