// The norms on the CPU: a row at a time, rows over threads.
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "snug/ops/cpu_rows.h"
#include "snug/ops/wide_options.h"

namespace snug::ops {
namespace {

template <class T, class Wide = at::opmath_type<T>>
Wide norm_row(const T* x, const T* weight, T* out, std::int64_t hidden, double eps) {
  const auto square = [&](std::int64_t i) {
    const Wide value = static_cast<Wide>(x[i]);
    return value * value;
  };
  const Wide rstd =
      1 / std::sqrt(row_sum(hidden, square) / static_cast<Wide>(hidden) + static_cast<Wide>(eps));
  for (std::int64_t i = 0; i < hidden; ++i)
    out[i] = static_cast<T>(static_cast<Wide>(x[i]) * rstd * static_cast<Wide>(weight[i]));
  return rstd;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const std::int64_t hidden = weight.size(0), rows = x.numel() / hidden;
  at::Tensor out = at::empty_like(x);
  at::Tensor rstd = at::empty({rows}, wide_options(x));
  with_type("rms_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const auto *from = x.const_data_ptr<T>(), *scale = weight.const_data_ptr<T>();
    auto* to = out.mutable_data_ptr<T>();
    auto* kept = rstd.mutable_data_ptr<Wide>();
    each_share(rows, [&](std::int64_t, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row)
        kept[row] = norm_row(from + row * hidden, scale, to + row * hidden, hidden, eps);
    });
  });
  return {out, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_cpu(const at::Tensor& x,
                                                                const at::Tensor& residual,
                                                                const at::Tensor& weight, double eps) {
  const std::int64_t hidden = weight.size(0), rows = x.numel() / hidden;
  at::Tensor sum = at::empty_like(x);
  at::Tensor out = at::empty_like(x);
  at::Tensor rstd = at::empty({rows}, wide_options(x));
  with_type("rms_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const auto *left = x.const_data_ptr<T>(), *right = residual.const_data_ptr<T>(),
               *scale = weight.const_data_ptr<T>();
    auto *added = sum.mutable_data_ptr<T>(), *to = out.mutable_data_ptr<T>();
    auto* kept = rstd.mutable_data_ptr<Wide>();
    each_share(rows, [&](std::int64_t, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * hidden;
        add_row(left + at, right + at, added + at, hidden);
        kept[row] = norm_row(added + at, scale, to + at, hidden, eps);
      }
    });
  });
  return {sum, out, rstd};
}

// With g = grad_out * weight and n = x * rstd: grad_x = rstd * (g - n * mean(g * n)) + grad_sum.
template <class T, class Wide = at::opmath_type<T>>
void backward_row(const T* grad_out, const T* grad_sum, const T* x, const T* weight, Wide rstd, T* grad_x,
                  Wide* grad_weight, std::int64_t hidden) {
  const auto g = [&](std::int64_t i) {
    return static_cast<Wide>(grad_out[i]) * static_cast<Wide>(weight[i]);
  };
  const auto n = [&](std::int64_t i) { return static_cast<Wide>(x[i]) * rstd; };
  const Wide mean = row_sum(hidden, [&](std::int64_t i) { return g(i) * n(i); }) / static_cast<Wide>(hidden);
  for (std::int64_t i = 0; i < hidden; ++i) {
    const Wide by_norm = rstd * (g(i) - n(i) * mean);
    grad_x[i] = static_cast<T>(grad_sum ? by_norm + static_cast<Wide>(grad_sum[i]) : by_norm);
    grad_weight[i] += static_cast<Wide>(grad_out[i]) * n(i);
  }
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_cpu(const at::Tensor& grad_out,
                                                         const std::optional<at::Tensor>& grad_sum,
                                                         const at::Tensor& x, const at::Tensor& weight,
                                                         const at::Tensor& rstd) {
  const std::int64_t hidden = weight.size(0), rows = x.numel() / hidden;
  at::Tensor grad_x = at::empty_like(x);
  at::Tensor grad_weight = at::empty_like(weight);
  const at::Tensor sums = at::zeros({at::get_num_threads(), hidden}, wide_options(x));
  with_type("rms_norm", x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using Wide = at::opmath_type<T>;
    const auto *grads = grad_out.const_data_ptr<T>(), *from = x.const_data_ptr<T>(),
               *scale = weight.const_data_ptr<T>();
    const auto* by_sum = grad_sum ? grad_sum->const_data_ptr<T>() : nullptr;
    auto* to = grad_x.mutable_data_ptr<T>();
    const auto* kept = rstd.const_data_ptr<Wide>();
    auto* partial = sums.mutable_data_ptr<Wide>();
    each_share(rows, [&](std::int64_t share, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const std::int64_t at = row * hidden;
        backward_row(grads + at, by_sum ? by_sum + at : nullptr, from + at, scale, kept[row], to + at,
                     partial + share * hidden, hidden);
      }
    });
    add_shares<T>(partial, sums.size(0), grad_weight);
  });
  return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("rms_norm", TORCH_FN(rms_norm_cpu));
  library.impl("add_rms_norm", TORCH_FN(add_rms_norm_cpu));
  library.impl("rms_norm_backward", TORCH_FN(rms_norm_backward_cpu));
}

}  // namespace
}  // namespace snug::ops
