// Rows of a table, looked up by token.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"

namespace snug::nn {

class SNUG_API EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(std::int64_t rows, std::int64_t hidden, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& tokens);

  at::Tensor weight;  // [rows, hidden]; not initialised, the model does that
};
TORCH_MODULE(Embedding);

}  // namespace snug::nn
