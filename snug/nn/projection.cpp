#include "snug/nn/projection.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

namespace snug::nn {

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({out, in}, options))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  return at::linear(x, weight);
}

}  // namespace snug::nn
