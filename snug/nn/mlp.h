// The gated feed-forward part of a block: down(silu(gate(x)) * up(x)).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/nn/projection.h"

namespace snug::nn {

class SNUG_API MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(std::int64_t hidden, std::int64_t intermediate, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

  Projection gate_proj, up_proj, down_proj;
};
TORCH_MODULE(Mlp);

}  // namespace snug::nn
