#include "snug/nn/rms_norm.h"

#include <ATen/ops/ones.h>

#include "snug/ops/norm_rope.h"

namespace snug::nn {

RmsNormImpl::RmsNormImpl(std::int64_t hidden, double eps, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::ones({hidden}, options))), eps_(eps) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return ops::rms_norm(x, weight, eps_);
}

ops::SumAndNorm RmsNormImpl::add(const at::Tensor& x, const at::Tensor& residual) {
  return ops::add_rms_norm(x, residual, weight, eps_);
}

at::Tensor RmsNormImpl::rotated(const at::Tensor& x, const ops::RopeTable& table) {
  return ops::norm_rope(x, weight, table, eps_);
}

}  // namespace snug::nn
