// Divides by the root mean square of the last dimension, then scales by a learned weight.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/base/export.h"
#include "snug/ops/rms_norm.h"
#include "snug/ops/rope.h"

namespace snug::nn {

class SNUG_API RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t hidden, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);
  ops::SumAndNorm add(const at::Tensor& x, const at::Tensor& residual);  // the norm of their sum
  // The norm of each head of x [batch, tokens, heads, hidden], then rotary positions; heads before tokens.
  at::Tensor rotated(const at::Tensor& x, const ops::RopeTable& table);

  at::Tensor weight;  // [hidden], ones

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace snug::nn
