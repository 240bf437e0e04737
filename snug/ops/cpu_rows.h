// What kernels on the CPU share: types, sums over a row, rows over threads. Internal to ops.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <numeric>

#include "snug/base/error.h"

namespace snug::ops {

// Calls use(T{}) with the type that a dtype stands for.
template <class Use>
void with_type(const char* name, at::ScalarType dtype, Use use) {
  switch (dtype) {
    case at::kFloat:
      return use(float{});
    case at::kDouble:
      return use(double{});
    case at::kBFloat16:
      return use(c10::BFloat16{});
    case at::kHalf:
      return use(c10::Half{});
    default:
      fail(name, " on the CPU takes floating point, got ", dtype);
  }
}

constexpr std::int64_t kLanes = 16;  // sums side by side: they fill vector registers, and round less

// The sum of term(i) over a row.
template <class Term>
auto row_sum(std::int64_t hidden, Term term) {
  using Sum = decltype(term(0));
  std::array<Sum, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  for (; i < hidden; ++i) sums[i % kLanes] += term(i);
  return std::accumulate(sums.begin(), sums.end(), Sum{});
}

// A row and its residual, rounded to T.
template <class T, class Wide = at::opmath_type<T>>
void add_row(const T* x, const T* residual, T* sum, std::int64_t hidden) {
  for (std::int64_t i = 0; i < hidden; ++i)
    sum[i] = static_cast<T>(static_cast<Wide>(x[i]) + static_cast<Wide>(residual[i]));
}

// Rows are dealt to a fixed number of threads, so that what each adds up does not depend on the moment.
template <class Use>
void each_share(std::int64_t rows, Use use) {
  const std::int64_t shares = at::get_num_threads();
  at::parallel_for(0, shares, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t share = first; share < last; ++share)
      use(share, rows * share / shares, rows * (share + 1) / shares);
  });
}

// What the shares [shares, hidden] add up to, in their order.
template <class T, class Wide>
void add_shares(const Wide* sums, std::int64_t shares, const at::Tensor& to) {
  const std::int64_t hidden = to.numel();
  T* totals = to.mutable_data_ptr<T>();
  for (std::int64_t i = 0; i < hidden; ++i) {
    Wide total = 0;
    for (std::int64_t share = 0; share < shares; ++share) total += sums[share * hidden + i];
    totals[i] = static_cast<T>(total);
  }
}

}  // namespace snug::ops
