// Schema, derivative and checked front, and the kernel for CPU and Meta, of ATen's operators in place. CUDA's
// is in linear_cross_entropy_cuda.cpp.
#include "snug/ops/linear_cross_entropy.h"

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/meta_target.h"
#include "snug/ops/linear_cross_entropy_pieces.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::uint64_t kPieceBytes = 512_MiB;

std::int64_t most_rows(std::int64_t vocabulary, at::ScalarType dtype) {
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(vocabulary) * c10::elementSize(dtype);
  return static_cast<std::int64_t>(std::max<std::uint64_t>(kPieceBytes / row_bytes, 1));
}

// In place. The factor is a number where the tensor is; most often 1.
void scale_(at::Tensor& tensor, const at::Tensor& factor) {
  static const auto op = find_operator<void(at::Tensor&, const at::Tensor&)>("snug::scale_");
  op.call(tensor, factor);
  note_written(tensor);
}

void scale_by_aten(at::Tensor& tensor, const at::Tensor& factor) {
  tensor.mul_(factor);
}

// What was made, times what comes from behind the loss, less what it was lifted by. Where it was made, unless
// it is needed again.
at::Tensor hand_out(c10::IValue& made, const at::Tensor& factor) {
  if (!made.isTensor()) return {};
  at::Tensor result = made.toTensor();
  if (torch::autograd::get_current_graph_task_keep_graph())
    result = result.clone();
  else
    made = c10::IValue();
  scale_(result, factor);
  return result;
}

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, double scale, std::int64_t ignore_index,
                            std::int64_t rows_at_a_time, bool hidden_grad, bool weight_grad) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [loss, grad_hidden, grad_weight] = linear_cross_entropy_with_grads(
        hidden, weight, targets, scale, ignore_index, rows_at_a_time, hidden_grad, weight_grad);
    // Not among the saved tensors: there is nothing to choose about them.
    if (hidden.scalar_type() == at::kHalf)
      context->saved_data["lift"] = gradient_lift(scale, hidden.size(0), at::kHalf);
    if (hidden_grad) context->saved_data["grad_hidden"] = grad_hidden;
    if (weight_grad) context->saved_data["grad_weight"] = grad_weight;
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    check(!at::GradMode::is_enabled(), "linear_cross_entropy has no second derivative");
    auto& made = context->saved_data;
    check(made["grad_hidden"].isTensor() || made["grad_weight"].isTensor(),
          "linear_cross_entropy: a second backward through a graph that the first did not retain");
    const at::Tensor factor = made["lift"].isDouble() ? grads[0] / made["lift"].toDouble() : grads[0];
    variable_list results(8);  // one per argument
    results[0] = hand_out(made["grad_hidden"], factor);
    results[1] = hand_out(made["grad_weight"], factor);
    return results;
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> differentiable(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
    std::int64_t ignore_index, std::int64_t rows_at_a_time, bool hidden_grad, bool weight_grad) {
  return {LinearCrossEntropyFunction::apply(hidden, weight, targets, scale, ignore_index, rows_at_a_time,
                                            hidden_grad, weight_grad),
          at::Tensor(), at::Tensor()};
}

// Without allocating, since Meta does not do it.
void check_targets(const at::Tensor& targets, std::int64_t vocabulary, std::int64_t ignore_index) {
  if (!targets.is_cpu()) return;
  const auto* values = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < targets.numel(); ++i)
    check(values[i] == ignore_index || (values[i] >= 0 && values[i] < vocabulary),
          "linear_cross_entropy: target ", values[i], " at row ", i, " is outside the vocabulary of ",
          vocabulary);
}

// Softmax and loss of whole rows, in fp32 and in place as far as the dtype allows.
std::tuple<at::Tensor, at::Tensor, at::Tensor> by_aten(const at::Tensor& hidden, const at::Tensor& weight,
                                                       const at::Tensor& targets, double scale,
                                                       std::int64_t ignore_index, std::int64_t rows_at_a_time,
                                                       bool hidden_grad, bool weight_grad) {
  check_targets(targets, weight.size(0), ignore_index);
  if (hidden.is_meta() && hooks::meta_stands_for_cuda())  // whose kernel works where the logits are
    return in_pieces(hidden, weight, targets, rows_at_a_time,
                     padded_columns(hidden.size(0), weight.size(0), hidden.scalar_type()), at::kFloat,
                     hidden_grad, weight_grad, [](at::Tensor&& logits, const at::Tensor&, const at::Tensor&) {
                       return std::move(logits);
                     });
  const at::ScalarType sums = at::toOpMathType(hidden.scalar_type());
  const double lift = gradient_lift(scale, hidden.size(0), hidden.scalar_type());
  return in_pieces(hidden, weight, targets, rows_at_a_time, weight.size(0), sums, hidden_grad, weight_grad,
                   [&](at::Tensor&& given, const at::Tensor& wanted, const at::Tensor& losses) {
                     at::Tensor logits = std::exchange(given, at::Tensor()).to(sums);
                     // Scalars first: an operator that takes one makes a tensor of it, and memory is highest
                     // below.
                     const at::Tensor factor = wanted.ne(ignore_index).to(sums).mul_(scale).unsqueeze_(1);
                     const at::Tensor column = wanted.clamp(0, logits.size(1) - 1).unsqueeze_(1);
                     logits.sub_(logits.amax({1}, /*keepdim=*/true));
                     losses.copy_(logits.gather(1, column).squeeze_(1)).neg_();
                     at::Tensor sum = logits.exp_().sum({1}, /*keepdim=*/true);
                     losses.add_(sum.log().squeeze_(1)).mul_(factor.squeeze(1));
                     if (!hidden_grad && !weight_grad) return logits;
                     if (lift != 1) factor.mul_(lift);
                     logits.mul_(sum.reciprocal_().mul_(factor));
                     logits.scatter_add_(1, column, sum.copy_(factor).neg_());
                     return logits.to(hidden.scalar_type());
                   });
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, float scale, int ignore_index, int "
      "rows_at_a_time, bool hidden_grad, bool weight_grad) -> (Tensor loss, Tensor grad_hidden, Tensor "
      "grad_weight)");
  library.def("scale_(Tensor(a!) tensor, Tensor factor) -> ()");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("linear_cross_entropy", TORCH_FN(by_aten));
  library.impl("scale_", TORCH_FN(scale_by_aten));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("linear_cross_entropy", TORCH_FN(differentiable));
  library.impl("scale_", torch::autograd::autogradNotImplementedFallback());
}

void check_inputs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                  const LinearCrossEntropyOptions& options) {
  check(hidden.dim() > 0 && weight.dim() == 2 && hidden.size(-1) == weight.size(1),
        "linear_cross_entropy: expected hidden [..., in] and weight [vocabulary, in], got ", hidden.sizes(),
        " and ", weight.sizes());
  check(targets.sizes() == hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)),
        "linear_cross_entropy: hidden ", hidden.sizes(), " needs a target per row, got ", targets.sizes());
  check(hidden.numel() > 0 && weight.size(0) > 0, "linear_cross_entropy: empty input ", hidden.sizes(),
        ", weight ", weight.sizes());
  check(targets.scalar_type() == at::kLong, "linear_cross_entropy: expected int64 targets, got ",
        targets.scalar_type());
  check(at::isFloatingType(hidden.scalar_type()) && hidden.scalar_type() == weight.scalar_type(),
        "linear_cross_entropy: expected one floating-point dtype, got ", hidden.scalar_type(), " and ",
        weight.scalar_type());
  check(hidden.device() == weight.device() && hidden.device() == targets.device(),
        "linear_cross_entropy: hidden is on ", hidden.device(), ", weight on ", weight.device(),
        ", targets on ", targets.device());
  check(options.rows_at_a_time >= 0, "linear_cross_entropy: rows_at_a_time must not be negative, got ",
        options.rows_at_a_time);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  check_inputs(hidden, weight, targets, options);
  const std::int64_t rows = hidden.numel() / hidden.size(-1);
  const std::int64_t pieces = usual_pieces(rows, weight.size(0), hidden.scalar_type());
  const std::int64_t at_a_time =
      options.rows_at_a_time > 0 ? options.rows_at_a_time : (rows + pieces - 1) / pieces;
  const bool grads = at::GradMode::is_enabled();
  return std::get<0>(linear_cross_entropy_with_grads(
      hidden.reshape({-1, hidden.size(-1)}).contiguous(), weight, targets.reshape(-1).contiguous(),
      options.scale, options.ignore_index, at_a_time, grads && hidden.requires_grad(),
      grads && weight.requires_grad()));
}

std::int64_t usual_pieces(std::int64_t rows, std::int64_t vocabulary, at::ScalarType dtype) {
  const std::int64_t at_a_time = most_rows(vocabulary, dtype);
  return (rows + at_a_time - 1) / at_a_time;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_with_grads(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
    std::int64_t ignore_index, std::int64_t rows_at_a_time, bool hidden_grad, bool weight_grad) {
  static const auto op =
      find_operator<decltype(linear_cross_entropy_with_grads)>("snug::linear_cross_entropy");
  return op.call(hidden, weight, targets, scale, ignore_index, rows_at_a_time, hidden_grad, weight_grad);
}

}  // namespace snug::ops
