// A model as embed, blocks, head: runs them in turn, each inside the region that plans and reports know it
// by.
//
//   Stack stack{.embed = ..., .blocks = {...}, .head = ...};
//   at::Tensor loss = stack.run(tokens);      // regions "embed", "layers.0", "layers.1", ..., "head"
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string_view>
#include <vector>

#include "snug/base/export.h"

namespace snug::nn {

struct SNUG_API Stack {
  using Part = std::function<at::Tensor(const at::Tensor&)>;

  Part embed;
  std::vector<Part> blocks;
  Part head;

  at::Tensor run(const at::Tensor& tokens) const;
};

// Says that a module's parameters live in this region, where the accumulation of their gradients is then
// counted.
SNUG_API void bind_to_region(std::string_view name, const torch::nn::Module& module);

}  // namespace snug::nn
