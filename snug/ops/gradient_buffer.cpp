#include "snug/ops/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace snug::ops {

namespace autograd = torch::autograd;

GradientTarget gradient_target(std::size_t number) {
  const auto node = autograd::get_current_node();
  if (!node || at::GradMode::is_enabled() || !autograd::Engine::get_default_engine().is_checkpoint_valid())
    return {};
  const auto& next = node->next_edge(number).function;
  auto* accumulate = dynamic_cast<autograd::AccumulateGrad*>(next.get());
  if (!accumulate || !accumulate->pre_hooks().empty() || !accumulate->post_hooks().empty() ||
      !accumulate->tensor_pre_hooks().empty() || accumulate->tensor_post_acc_grad_hooks())
    return {};
  const at::Tensor& parameter = accumulate->variable;
  if (!parameter.requires_grad() || !parameter.is_leaf()) return {};  // changed since the forward
  if (!parameter.grad().defined()) return {.sum = {}, .dtype = parameter.grad_dtype()};
  const bool usable = parameter.grad().is_non_overlapping_and_dense() && node->stream() == next->stream();
  return {.sum = usable ? parameter.grad() : at::Tensor(), .dtype = parameter.grad_dtype()};
}

}  // namespace snug::ops
