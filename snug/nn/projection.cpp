#include "snug/nn/projection.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace snug::nn {

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options,
                               ProjectionForm form)
    : layout_(form.layout) {
  const bool out_in = form.layout == ops::WeightLayout::OutIn;
  weight = register_parameter("weight", at::empty({out_in ? out : in, out_in ? in : out}, options));
  if (form.bias) bias = register_parameter("bias", at::zeros({out}, options));
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  return ops::linear(x, weight, bias, layout_);
}

}  // namespace snug::nn
