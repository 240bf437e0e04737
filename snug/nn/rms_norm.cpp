#include "snug/nn/rms_norm.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>

namespace snug::nn {

RmsNormImpl::RmsNormImpl(std::int64_t hidden, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::ones({hidden}, options))), eps_(eps) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return at::rms_norm(x, weight.sizes(), weight, eps_);
}

}  // namespace snug::nn
