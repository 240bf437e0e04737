// Schema, derivative and checked front of the attention operator; the kernels are in
// attention_{cpu,cuda,meta}.cpp.
#include "snug/ops/attention.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "snug/base/error.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<at::Tensor, at::Tensor> call_attention(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value, bool causal, double scale,
                                                  std::int64_t window, std::int64_t backend) {
  static const auto op = find_operator<decltype(call_attention)>("snug::attention");
  return op.call(query, key, value, causal, scale, window, backend);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> call_backward(const at::Tensor& grad_out,
                                                             const at::Tensor& query, const at::Tensor& key,
                                                             const at::Tensor& value, const at::Tensor& out,
                                                             const at::Tensor& lse, bool causal, double scale,
                                                             std::int64_t window, std::int64_t backend) {
  static const auto op = find_operator<decltype(call_backward)>("snug::attention_backward");
  return op.call(grad_out, query, key, value, out, lse, causal, scale, window, backend);
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, bool causal, double scale, std::int64_t window,
                               std::int64_t backend) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, lse] = call_attention(query, key, value, causal, scale, window, backend);
    context->save_for_backward({query, key, value, out, lse});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    context->saved_data["backend"] = backend;
    context->mark_non_differentiable({lse});
    context->set_materialize_grads(
        false);  // else a zero gradient of lse would be allocated in every backward
    return {out, lse};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}, {}, {}};
    auto saved = context->get_saved_variables();
    auto [grad_query, grad_key, grad_value] =
        call_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                      context->saved_data["causal"].toBool(), context->saved_data["scale"].toDouble(),
                      context->saved_data["window"].toInt(), context->saved_data["backend"].toInt());
    return {grad_query, grad_key, grad_value, {}, {}, {}, {}};
  }
};

std::tuple<at::Tensor, at::Tensor> differentiable_attention(const at::Tensor& query, const at::Tensor& key,
                                                            const at::Tensor& value, bool causal,
                                                            double scale, std::int64_t window,
                                                            std::int64_t backend) {
  auto results = AttentionFunction::apply(query, key, value, causal, scale, window, backend);
  return {results[0], results[1]};
}

void check_inputs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal) {
  check(query.dim() == 4 && key.dim() == 4,
        "attention: expected query and key of 4 dimensions [batch, heads, tokens, ", "head_dim], got ",
        query.sizes(), " and ", key.sizes());
  check(key.sizes() == value.sizes(), "attention: key and value must have the same sizes, got ", key.sizes(),
        " and ", value.sizes());
  check(query.size(0) == key.size(0) && query.size(3) == key.size(3),
        "attention: query and key must agree in batch and head_dim, got ", query.sizes(), " and ",
        key.sizes());
  check(query.numel() > 0 && key.numel() > 0, "attention: empty input, query ", query.sizes(), ", key ",
        key.sizes());
  check(query.size(1) % key.size(1) == 0,
        "attention: the number of key heads must divide the number of query heads, got ", key.size(1),
        " and ", query.size(1));
  check(!causal || query.size(2) == key.size(2),
        "attention: causal attention needs as many query tokens as key tokens, got ", query.size(2), " and ",
        key.size(2));
  check(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(),
        "attention: query, key and value must have one dtype, got ", query.scalar_type(), ", ",
        key.scalar_type(), " and ", value.scalar_type());
  for (const auto* tensor : {&query, &key, &value}) {
    check(tensor->stride(3) == 1, "attention: the last dimension must be contiguous, got strides ",
          tensor->strides(), "; call contiguous() first");
  }
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, bool causal, float scale, int window, int backend) "
      "-> (Tensor "
      "out, Tensor "
      "lse)");
  library.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
      "bool causal, "
      "float scale, int window, int backend) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)");
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("attention", TORCH_FN(differentiable_attention));
  // A second derivative is refused with an error that names the operator.
  library.impl("attention_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::string missing_attention_kernel(c10::DeviceType device, at::ScalarType dtype, std::int64_t head_dim) {
  if (!at::isFloatingType(dtype)) return concat("attention takes floating point, got ", dtype);
  if (device != c10::kCUDA) return "";
  if (dtype != at::kBFloat16 && dtype != at::kHalf && dtype != at::kFloat)
    return concat("attention on CUDA takes bfloat16, float16 and float32, got ", dtype);
  const std::int64_t most = dtype == at::kFloat ? std::numeric_limits<std::int64_t>::max() : 256;
  if (head_dim % 8 != 0 || head_dim > most)
    return concat("attention on CUDA in ", dtype, " has no kernel for heads of ", head_dim,
                  ": a multiple of 8 is expected", dtype == at::kFloat ? "" : ", at most 256");
  return "";
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     AttentionOptions options) {
  check_inputs(query, key, value, options.causal);
  if (options.backend < AttentionBackend::Blockwise) {
    const std::string missing =
        missing_attention_kernel(query.device().type(), query.scalar_type(), query.size(3));
    check(missing.empty(), missing, "; ask for AttentionBackend::Blockwise or Quadratic, or pad");
  }
  check(options.window >= 0 && (options.window == 0 || options.causal),
        "attention: `window` must be 0 or more and is of causal attention, got ", options.window);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  // One that reaches back to the first token hides nothing: the kernels without a window are the faster ones.
  const std::int64_t window = options.window < key.size(2) ? options.window : 0;
  return std::get<0>(attention_with_lse(query, key, value, options.causal, scale, window, options.backend));
}

std::tuple<at::Tensor, at::Tensor> attention_with_lse(const at::Tensor& query, const at::Tensor& key,
                                                      const at::Tensor& value, bool causal, double scale,
                                                      std::int64_t window, AttentionBackend backend) {
  return call_attention(query, key, value, causal, scale, window, static_cast<std::int64_t>(backend));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& lse, bool causal, double scale, std::int64_t window,
    AttentionBackend backend) {
  return call_backward(grad_out, query, key, value, out, lse, causal, scale, window,
                       static_cast<std::int64_t>(backend));
}

}  // namespace snug::ops
