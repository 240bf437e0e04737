// Schema, derivative and checked front of gelu, and its kernels for CPU and Meta: ATen's own. CUDA's is in
// gelu_cuda.cu.
#include "snug/ops/gelu.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_gelu(const at::Tensor& x, bool tanh) {
  static const auto op = find_operator<decltype(call_gelu)>("snug::gelu");
  return op.call(x, tanh);
}

at::Tensor call_gelu_backward(const at::Tensor& grad_out, const at::Tensor& x, bool tanh) {
  static const auto op = find_operator<decltype(call_gelu_backward)>("snug::gelu_backward");
  return op.call(grad_out, x, tanh);
}

class GeluFunction : public torch::autograd::Function<GeluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, bool tanh) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x});
    context->saved_data["tanh"] = tanh;
    return call_gelu(x, tanh);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {call_gelu_backward(grads[0].contiguous(), saved[0], context->saved_data["tanh"].toBool()), {}};
  }
};

at::Tensor differentiable_gelu(const at::Tensor& x, bool tanh) {
  return GeluFunction::apply(x, tanh);
}

at::Tensor gelu_by_aten(const at::Tensor& x, bool tanh) {
  return at::gelu(x, tanh ? "tanh" : "none");
}

at::Tensor gelu_backward_by_aten(const at::Tensor& grad_out, const at::Tensor& x, bool tanh) {
  return at::gelu_backward(grad_out, x, tanh ? "tanh" : "none");
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("gelu(Tensor x, bool tanh) -> Tensor");
  library.def("gelu_backward(Tensor grad_out, Tensor x, bool tanh) -> Tensor");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("gelu", TORCH_FN(gelu_by_aten));
  library.impl("gelu_backward", TORCH_FN(gelu_backward_by_aten));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("gelu", TORCH_FN(differentiable_gelu));
  library.impl("gelu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor gelu(const at::Tensor& x, GeluForm form) {
  check(at::isFloatingType(x.scalar_type()), "gelu: expected floating point, got ", x.scalar_type());
  check(x.numel() > 0, "gelu: empty input ", x.sizes());
  return call_gelu(x.contiguous(), form == GeluForm::Tanh);
}

at::Tensor gelu_backward(const at::Tensor& grad_out, const at::Tensor& x, GeluForm form) {
  check(grad_out.sizes() == x.sizes() && grad_out.scalar_type() == x.scalar_type() &&
            grad_out.is_contiguous() && x.is_contiguous(),
        "gelu_backward: expected two contiguous tensors of one kind, got ", grad_out.sizes(), " ",
        grad_out.scalar_type(), " and ", x.sizes(), " ", x.scalar_type());
  return call_gelu_backward(grad_out, x, form == GeluForm::Tanh);
}

}  // namespace snug::ops
