#include "snug/nn/layer_norm.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace snug::nn {

LayerNormImpl::LayerNormImpl(std::int64_t hidden, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::ones({hidden}, options))),
      bias(register_parameter("bias", at::zeros({hidden}, options))),
      eps_(eps) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  return ops::layer_norm(x, weight, bias, eps_);
}

ops::SumAndNorm LayerNormImpl::add(const at::Tensor& x, const at::Tensor& residual) {
  return ops::add_layer_norm(x, residual, weight, bias, eps_);
}

}  // namespace snug::nn
