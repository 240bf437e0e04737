// layer_norm on the CPU, a row at a time, rows over threads.
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "snug/ops/cpu_rows.h"
#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// What a row is scaled and shifted by; no bias: null.
template <class T>
struct Affine {
  const T* weight;
  const T* bias;
};

// Its mean and rstd.
template <class T, class Wide = at::opmath_type<T>>
std::pair<Wide, Wide> layer_norm_row(const T* x, Affine<T> affine, T* out, std::int64_t hidden, double eps) {
  const auto count = static_cast<Wide>(hidden);
  const Wide mean = row_sum(hidden, [&](std::int64_t i) { return static_cast<Wide>(x[i]); }) / count;
  const auto square = [&](std::int64_t i) {
    const Wide away = static_cast<Wide>(x[i]) - mean;
    return away * away;
  };
  const Wide rstd = 1 / std::sqrt(row_sum(hidden, square) / count + static_cast<Wide>(eps));
  for (std::int64_t i = 0; i < hidden; ++i) {
    const Wide value = (static_cast<Wide>(x[i]) - mean) * rstd * static_cast<Wide>(affine.weight[i]);
    out[i] = static_cast<T>(affine.bias ? value + static_cast<Wide>(affine.bias[i]) : value);
  }
  return {mean, rstd};
}

// Of x, or of its sum with the residual, which goes into `sum`.
Three norm_rows_cpu(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& sum,
                    const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps) {
  const std::int64_t hidden = weight.size(0), rows = x.numel() / hidden;
  at::Tensor out = at::empty_like(x);
  at::Tensor mean = at::empty({rows}, wide_options(x));
  at::Tensor rstd = at::empty({rows}, wide_options(x));
  with_type("layer_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const Affine<T> affine{weight.const_data_ptr<T>(), bias ? bias->const_data_ptr<T>() : nullptr};
    const auto* left = x.const_data_ptr<T>();
    const auto* right = residual.defined() ? residual.const_data_ptr<T>() : nullptr;
    auto* added = sum.defined() ? sum.mutable_data_ptr<T>() : nullptr;
    const auto* from = added ? added : left;
    auto* to = out.mutable_data_ptr<T>();
    auto *means = mean.mutable_data_ptr<Wide>(), *rstds = rstd.mutable_data_ptr<Wide>();
    each_share(rows, [&](std::int64_t, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * hidden;
        if (added) add_row(left + at, right + at, added + at, hidden);
        std::tie(means[row], rstds[row]) = layer_norm_row(from + at, affine, to + at, hidden, eps);
      }
    });
  });
  return {out, mean, rstd};
}

Three layer_norm_cpu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     double eps) {
  return norm_rows_cpu(x, {}, {}, weight, bias, eps);
}

Four add_layer_norm_cpu(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, double eps) {
  at::Tensor sum = at::empty_like(x);
  auto [out, mean, rstd] = norm_rows_cpu(x, residual, sum, weight, bias, eps);
  return {sum, out, mean, rstd};
}

// With g = grad_out * weight and n = (x - mean) * rstd: grad_x = rstd * (g - mean(g) - n * mean(g * n)) +
// grad_sum.
template <class T, class Wide = at::opmath_type<T>>
void layer_norm_backward_row(const T* grad_out, const T* grad_sum, const T* x, const T* weight, Wide mean,
                             Wide rstd, T* grad_x, Wide* grad_weight, Wide* grad_bias, std::int64_t hidden) {
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
    const Wide by_norm = rstd * (g(i) - mean_g - n(i) * mean_gn);
    grad_x[i] = static_cast<T>(grad_sum ? by_norm + static_cast<Wide>(grad_sum[i]) : by_norm);
  }
}

Three layer_norm_backward_cpu(const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum,
                              const at::Tensor& x, const at::Tensor& weight, const at::Tensor& mean,
                              const at::Tensor& rstd, bool has_bias) {
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  at::Tensor grad_bias = has_bias ? at::empty_like(weight) : at::Tensor();
  const std::int64_t shares = at::get_num_threads();
  const at::Tensor sums = at::zeros({has_bias ? 2 : 1, shares, weight.size(0)}, wide_options(x));
  with_type("layer_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const std::int64_t hidden = weight.size(0);
    const auto *grads = grad_out.const_data_ptr<T>(), *xs = x.const_data_ptr<T>(),
               *scale = weight.const_data_ptr<T>();
    const auto* by_sum = grad_sum ? grad_sum->const_data_ptr<T>() : nullptr;
    const auto *means = mean.const_data_ptr<Wide>(), *rstds = rstd.const_data_ptr<Wide>();
    auto* to = grad_x.mutable_data_ptr<T>();
    auto* of_weight = sums.mutable_data_ptr<Wide>();
    auto* of_bias = has_bias ? of_weight + shares * hidden : nullptr;
    each_share(mean.numel(), [&](std::int64_t share, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * hidden;
        layer_norm_backward_row(grads + at, by_sum ? by_sum + at : nullptr, xs + at, scale, means[row],
                                rstds[row], to + at, of_weight + share * hidden,
                                of_bias ? of_bias + share * hidden : nullptr, hidden);
      }
    });
    add_shares<T>(of_weight, shares, grad_weight);
    if (has_bias) add_shares<T>(of_bias, shares, grad_bias);
  });
  return {grad_x, grad_weight, grad_bias};
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("layer_norm", TORCH_FN(layer_norm_cpu));
  library.impl("add_layer_norm", TORCH_FN(add_layer_norm_cpu));
  library.impl("layer_norm_backward", TORCH_FN(layer_norm_backward_cpu));
}

}  // namespace
}  // namespace snug::ops
