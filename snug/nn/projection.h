// A matrix applied to the last dimension, with a bias or without.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/ops/project.h"

namespace snug::nn {

struct ProjectionForm {
  bool bias = false;
  ops::WeightLayout layout = ops::WeightLayout::OutIn;
};

class SNUG_API ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options,
                 ProjectionForm form = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [out, in] or [in, out]; not initialised, the model does that
  at::Tensor bias;    // [out], zeros; undefined if there is none

 private:
  ops::WeightLayout layout_;
};
TORCH_MODULE(Projection);

}  // namespace snug::nn
