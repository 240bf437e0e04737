// A matrix applied to the last dimension, without bias.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"

namespace snug::nn {

class SNUG_API ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [out, in]; not initialised, the model does that
};
TORCH_MODULE(Projection);

}  // namespace snug::nn
