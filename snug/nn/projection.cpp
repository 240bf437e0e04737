#include "snug/nn/projection.h"

#include <ATen/ops/empty.h>

#include "snug/ops/project.h"

namespace snug::nn {

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({out, in}, options))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  return ops::linear(x, weight);
}

}  // namespace snug::nn
