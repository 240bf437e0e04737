// For CPU and Meta two products per half, written straight into the result; CUDA's kernel is in rope_cuda.cu.
#include "snug/ops/rope.h"

#include <ATen/ops/cumsum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <numbers>

#include "snug/base/error.h"
#include "snug/ops/operator.h"
#include "snug/ops/rope_table.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  auto half = x.size(-1) / 2;
  auto x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
  auto out = at::empty_like(x);
  auto out1 = out.narrow(-1, 0, half), out2 = out.narrow(-1, half, half);
  double direction = inverse ? -1.0 : 1.0;
  at::mul_out(out1, x1, cos).addcmul_(x2, sin, -direction);
  at::mul_out(out2, x2, cos).addcmul_(x1, sin, direction);
  return out;
}

// 0, 1, 2, ... Not by at::arange: on Meta it grows its result by resize_, which no allocator sees.
at::Tensor count_up(std::int64_t count, const at::TensorOptions& options) {
  return at::ones({count}, options).cumsum_(0).sub_(1);
}

// In place; frequencies are radians per position.
void scale_frequencies(at::Tensor& frequencies, const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::Linear) {
    frequencies.div_(scaling.factor);
    return;
  }
  const auto positions = static_cast<double>(scaling.original_positions);
  at::Tensor kept = frequencies.mul(positions / (2 * std::numbers::pi));  // turns
  kept.sub_(scaling.low_turns).div_(scaling.high_turns - scaling.low_turns).clamp_(0, 1);
  // kept * frequency + (1 - kept) * frequency / factor
  frequencies.mul_(kept.mul_(1 - 1 / scaling.factor).add_(1 / scaling.factor));
}

class RopeFunction : public torch::autograd::Function<RopeFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, bool inverse) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({cos, sin});
    context->saved_data["inverse"] = inverse;
    return rope_by(x, cos, sin, inverse);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto saved = context->get_saved_variables();
    return {rope_by(grads[0], saved[0], saved[1], !context->saved_data["inverse"].toBool()), {}, {}, {}};
  }
};

at::Tensor differentiable_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                               bool inverse) {
  return RopeFunction::apply(x, cos, sin, inverse);
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("rope(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("rope", TORCH_FN(rotate));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("rope", TORCH_FN(differentiable_rope));
}

}  // namespace

RopeTable make_rope_table(std::int64_t tokens, std::int64_t head_dim, double theta,
                          const at::TensorOptions& options, const std::optional<RopeScaling>& scaling) {
  check(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim must be even, got ", head_dim);
  auto fp32 = options.dtype(at::kFloat);
  auto exponents = count_up(head_dim / 2, fp32).mul_(2).div_(head_dim);
  auto frequencies = at::pow(theta, exponents).reciprocal_();
  if (scaling) scale_frequencies(frequencies, *scaling);
  auto angles = at::outer(count_up(tokens, fp32), frequencies);  // [tokens, head_dim / 2]
  return {angles.cos().to(options.dtype()), angles.sin().to(options.dtype())};
}

at::Tensor rope(const at::Tensor& x, const RopeTable& table) {
  constexpr auto kExpected = "[batch, heads, tokens, head_dim]";
  check(x.dim() == 4, "rope: expected x ", kExpected, ", got ", x.sizes());
  check_rope_table("rope", kExpected, x, x.size(2), x.size(3), table);
  return rope_by(x, table.cos.contiguous(), table.sin.contiguous(), /*inverse=*/false);
}

at::Tensor rope_by(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  static const auto op = find_operator<decltype(rope_by)>("snug::rope");
  return op.call(x, cos, sin, inverse);
}

}  // namespace snug::ops
