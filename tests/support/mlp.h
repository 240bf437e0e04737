// Two linear layers with a gelu between them, each layer a region.
#pragma once

#include <ATen/ops/gelu.h>
#include <torch/nn/modules/linear.h>

#include "snug/hooks/region.h"

namespace snug {

struct Mlp : torch::nn::Module {
  explicit Mlp(std::int64_t in = 64, std::int64_t hidden = 128, std::int64_t out = 16)
      : first(register_module("first", torch::nn::Linear(in, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, out))) {}

  at::Tensor loss(const at::Tensor& x) {
    at::Tensor h;
    {
      hooks::RegionScope scope("first");
      h = at::gelu(first(x));
    }
    hooks::RegionScope scope("second");
    return second(h).pow(2).mean();
  }

  torch::nn::Linear first, second;
};

}  // namespace snug
