// Schema, derivative and checked front of swiglu, and its kernels for CPU and Meta: ATen's own, which write
// straight into the results. CUDA's is in swiglu_cuda.cu.
#include "snug/ops/swiglu.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op = find_operator<decltype(call_swiglu)>("snug::swiglu");
  return op.call(gate, up);
}

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate, up});
    return call_swiglu(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_gate, grad_up] = swiglu_backward(grads[0].contiguous(), saved[0], saved[1]);
    return {grad_gate, grad_up};
  }
};

at::Tensor differentiable_swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluFunction::apply(gate, up);
}

at::Tensor swiglu_by_aten(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate).mul_(up);
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward_by_aten(const at::Tensor& grad_out, const at::Tensor& gate,
                                                           const at::Tensor& up) {
  at::Tensor grad_gate = at::mul(grad_out, up);
  at::silu_backward_out(grad_gate, grad_gate, gate);
  return {grad_gate, at::silu(gate).mul_(grad_out)};
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def(
      "swiglu_backward(Tensor grad_out, Tensor gate, Tensor up) -> (Tensor grad_gate, Tensor grad_up)");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("swiglu", TORCH_FN(swiglu_by_aten));
  library.impl("swiglu_backward", TORCH_FN(swiglu_backward_by_aten));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("swiglu", TORCH_FN(differentiable_swiglu));
  library.impl("swiglu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.device() == up.device(),
        "swiglu: expected two tensors of one kind, got ", gate.sizes(), " ", gate.scalar_type(), " on ",
        gate.device(), " and ", up.sizes(), " ", up.scalar_type(), " on ", up.device());
  check(at::isFloatingType(gate.scalar_type()), "swiglu: expected floating point, got ", gate.scalar_type());
  check(gate.numel() > 0, "swiglu: empty input ", gate.sizes());
  return call_swiglu(gate.contiguous(), up.contiguous());
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  static const auto op = find_operator<decltype(swiglu_backward)>("snug::swiglu_backward");
  return op.call(grad_out, gate, up);
}

}  // namespace snug::ops
