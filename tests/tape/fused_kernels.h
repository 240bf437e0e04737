// Functions whose kernels write as fused ones do: a loss that makes its gradients in place of the logits, a
// rotation inside a projection's result, and a product whose backward writes over what it saved.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/tape/raw_writes.h"

namespace snug::tape {

struct LossOverLogits : torch::autograd::Function<LossOverLogits> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor logits) {
    const at::Tensor loss = logits.detach().square().sum();
    raw_scale(logits.detach(), 2);
    context->save_for_backward({logits.detach()});
    return loss;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    return {context->get_saved_variables()[0] * grads[0]};
  }
};
struct RotateInside : torch::autograd::Function<RotateInside> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor q) {
    raw_scale(q.detach(), -1.0f, 0, q.numel() / 2);
    return q.view_as(q);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    at::Tensor back = grads[0].clone();
    raw_scale(back, -1.0f, 0, back.numel() / 2);
    return {back};
  }
};
struct GateOverSaved : torch::autograd::Function<GateOverSaved> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor a, at::Tensor b) {
    context->save_for_backward({a, b});
    return a * b;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor of_a = grads[0] * saved[1], of_b = grads[0] * saved[0];
    raw_scale(saved[0].detach(), 7);
    raw_scale(saved[1].detach(), 9);
    return {of_a, of_b};
  }
};

}  // namespace snug::tape
