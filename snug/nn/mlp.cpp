#include "snug/nn/mlp.h"

#include "snug/ops/project.h"
#include "snug/ops/swiglu.h"

namespace snug::nn {

MlpImpl::MlpImpl(std::int64_t hidden, std::int64_t intermediate, const at::TensorOptions& options)
    : gate_proj(register_module("gate_proj", Projection(hidden, intermediate, options))),
      up_proj(register_module("up_proj", Projection(hidden, intermediate, options))),
      down_proj(register_module("down_proj", Projection(intermediate, hidden, options))) {}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  const auto parts = ops::project(x, {gate_proj->weight, up_proj->weight});
  return down_proj(ops::swiglu(parts[0], parts[1]));
}

}  // namespace snug::nn
