// Takes away the mean of the last dimension and divides by its standard deviation, then scales and shifts.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/ops/layer_norm.h"

namespace snug::nn {

class SNUG_API LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(std::int64_t hidden, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  ops::SumAndNorm add(const at::Tensor& x, const at::Tensor& residual);  // the norm of their sum

  at::Tensor weight, bias;  // [hidden], ones and zeros

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

}  // namespace snug::nn
