// Schema, derivative and checked front of embedding; the kernels are in embedding_{cpu,cuda}.cpp.
#include "snug/ops/embedding.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_embedding(const at::Tensor& weight, const at::Tensor& tokens) {
  static const auto op = find_operator<decltype(call_embedding)>("snug::embedding");
  return op.call(weight, tokens);
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({tokens});
    context->saved_data["rows"] = weight.size(0);
    return call_embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {embedding_backward(grads[0].contiguous(), saved[0], context->saved_data["rows"].toInt()), {}};
  }
};

at::Tensor differentiable_embedding(const at::Tensor& weight, const at::Tensor& tokens) {
  return EmbeddingFunction::apply(weight, tokens);
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("embedding(Tensor weight, Tensor tokens) -> Tensor");
  library.def("embedding_backward(Tensor grad_out, Tensor tokens, int rows) -> Tensor");
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("embedding", TORCH_FN(differentiable_embedding));
  library.impl("embedding_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens) {
  check(weight.dim() == 2 && weight.numel() > 0,
        "embedding: expected weight [rows, hidden] that is not empty, got ", weight.sizes());
  check(at::isFloatingType(weight.scalar_type()), "embedding: expected floating point, got ",
        weight.scalar_type());
  check(tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt,
        "embedding: expected tokens int64 or int32, got ", tokens.scalar_type());
  check(tokens.numel() > 0, "embedding: no tokens, ", tokens.sizes());
  check(weight.device() == tokens.device(), "embedding: weight is on ", weight.device(), ", tokens on ",
        tokens.device());
  return call_embedding(weight.contiguous(), tokens.contiguous());
}

at::Tensor embedding_backward(const at::Tensor& grad_out, const at::Tensor& tokens, std::int64_t rows) {
  check(grad_out.dim() > 0 && grad_out.is_contiguous() && grad_out.size(-1) > 0 &&
            grad_out.numel() == tokens.numel() * grad_out.size(-1) && rows > 0,
        "embedding_backward: expected a contiguous row per token of ", tokens.sizes(), ", got ",
        grad_out.sizes(), " for a table of ", rows, " rows");
  static const auto op = find_operator<decltype(embedding_backward)>("snug::embedding_backward");
  return op.call(grad_out, tokens, rows);
}

}  // namespace snug::ops
