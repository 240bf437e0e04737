#include "snug/nn/mlp.h"

#include <ATen/ops/silu.h>

namespace snug::nn {

MlpImpl::MlpImpl(std::int64_t hidden, std::int64_t intermediate, const at::TensorOptions& options)
    : gate_proj(register_module("gate_proj", Projection(hidden, intermediate, options))),
      up_proj(register_module("up_proj", Projection(hidden, intermediate, options))),
      down_proj(register_module("down_proj", Projection(intermediate, hidden, options))) {}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return down_proj(at::silu(gate_proj(x)) * up_proj(x));
}

}  // namespace snug::nn
