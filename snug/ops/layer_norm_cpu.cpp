// layer_norm on the CPU, a row at a time, rows over threads; and on Meta, which allocates by the same
// functions.
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "snug/ops/cpu_rows.h"

namespace snug::ops {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::TensorOptions wide_options(const at::Tensor& x) {
  return x.options().dtype(at::toOpMathType(x.scalar_type()));
}

Three layer_norm_room(const at::Tensor& x, const at::Tensor&, const std::optional<at::Tensor>&, double) {
  const std::int64_t rows = x.numel() / x.size(-1);
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = at::empty({rows}, wide_options(x));
  at::Tensor rstd = at::empty({rows}, wide_options(x));
  return {out, mean, rstd};
}

struct LayerNormGradients {
  at::Tensor x, weight, bias;
  at::Tensor sums;  // [weight and bias, threads, hidden], zeros
};
LayerNormGradients layer_norm_backward_room(const at::Tensor& x, const at::Tensor& weight, bool has_bias) {
  LayerNormGradients grad;
  grad.x = at::empty_like(x);
  grad.weight = at::empty_like(weight);
  if (has_bias) grad.bias = at::empty_like(weight);
  grad.sums = at::zeros({has_bias ? 2 : 1, at::get_num_threads(), weight.size(0)}, wide_options(x));
  return grad;
}

Three layer_norm_cpu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     double eps) {
  auto results = layer_norm_room(x, weight, bias, eps);
  const auto& [out, mean, rstd] = results;
  with_type("layer_norm", x.scalar_type(), [&, &out = out, &mean = mean, &rstd = rstd](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const std::int64_t hidden = weight.size(0);
    const auto *xs = x.const_data_ptr<T>(), *scale = weight.const_data_ptr<T>();
    const auto* shift = bias ? bias->const_data_ptr<T>() : nullptr;
    auto* outs = out.mutable_data_ptr<T>();
    auto *means = mean.mutable_data_ptr<Wide>(), *rstds = rstd.mutable_data_ptr<Wide>();
    each_share(mean.numel(), [&](std::int64_t, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const T* from = xs + row * hidden;
        T* to = outs + row * hidden;
        const auto count = static_cast<Wide>(hidden);
        const Wide middle =
            row_sum(hidden, [&](std::int64_t i) { return static_cast<Wide>(from[i]); }) / count;
        const auto square = [&](std::int64_t i) {
          const Wide away = static_cast<Wide>(from[i]) - middle;
          return away * away;
        };
        const Wide scaled = 1 / std::sqrt(row_sum(hidden, square) / count + static_cast<Wide>(eps));
        for (std::int64_t i = 0; i < hidden; ++i) {
          const Wide value = (static_cast<Wide>(from[i]) - middle) * scaled * static_cast<Wide>(scale[i]);
          to[i] = static_cast<T>(shift ? value + static_cast<Wide>(shift[i]) : value);
        }
        means[row] = middle;
        rstds[row] = scaled;
      }
    });
  });
  return results;
}

// With g = grad_out * weight and n = (x - mean) * rstd: grad_x = rstd * (g - mean(g) - n * mean(g * n)).
template <class T, class Wide = at::opmath_type<T>>
void layer_norm_backward_row(const T* grad_out, const T* x, const T* weight, Wide mean, Wide rstd, T* grad_x,
                             Wide* grad_weight, Wide* grad_bias, std::int64_t hidden) {
  const auto g = [&](std::int64_t i) {
    return static_cast<Wide>(grad_out[i]) * static_cast<Wide>(weight[i]);
  };
  const auto n = [&](std::int64_t i) { return (static_cast<Wide>(x[i]) - mean) * rstd; };
  const auto count = static_cast<Wide>(hidden);
  const Wide mean_g = row_sum(hidden, g) / count;
  const Wide mean_gn = row_sum(hidden, [&](std::int64_t i) { return g(i) * n(i); }) / count;
  for (std::int64_t i = 0; i < hidden; ++i) {
    grad_weight[i] += static_cast<Wide>(grad_out[i]) * n(i);
    if (grad_bias) grad_bias[i] += static_cast<Wide>(grad_out[i]);
    grad_x[i] = static_cast<T>(rstd * (g(i) - mean_g - n(i) * mean_gn));
  }
}

Three layer_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& mean, const at::Tensor& rstd, bool has_bias) {
  const LayerNormGradients grad = layer_norm_backward_room(x, weight, has_bias);
  with_type("layer_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const std::int64_t hidden = weight.size(0), shares = grad.sums.size(1);
    const auto *grads = grad_out.const_data_ptr<T>(), *xs = x.const_data_ptr<T>(),
               *scale = weight.const_data_ptr<T>();
    const auto *means = mean.const_data_ptr<Wide>(), *rstds = rstd.const_data_ptr<Wide>();
    auto* to = grad.x.mutable_data_ptr<T>();
    auto* of_weight = grad.sums.mutable_data_ptr<Wide>();
    auto* of_bias = has_bias ? of_weight + shares * hidden : nullptr;
    each_share(mean.numel(), [&](std::int64_t share, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * hidden;
        layer_norm_backward_row(grads + at, xs + at, scale, means[row], rstds[row], to + at,
                                of_weight + share * hidden, of_bias ? of_bias + share * hidden : nullptr,
                                hidden);
      }
    });
    add_shares<T>(of_weight, shares, grad.weight);
    if (has_bias) add_shares<T>(of_bias, shares, grad.bias);
  });
  return {grad.x, grad.weight, grad.bias};
}

Three layer_norm_backward_meta(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor&, const at::Tensor&, bool has_bias) {
  const LayerNormGradients grad = layer_norm_backward_room(x, weight, has_bias);
  return {grad.x, grad.weight, grad.bias};
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("layer_norm", TORCH_FN(layer_norm_cpu));
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_cpu));
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("layer_norm", TORCH_FN(layer_norm_room));
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_meta));
}

}  // namespace
}  // namespace snug::ops
