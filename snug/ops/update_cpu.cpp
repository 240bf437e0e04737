// Optimizer steps on the CPU: loops that the compiler makes vectors of.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "snug/ops/update_dispatch.h"

// A copy for every width of vectors; the loader takes the widest that the machine has. All round alike, as
// the compiler is told to fuse no products and sums. Sanitizers are not ready when the loader asks.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SNUG_EVERY_WIDTH [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define SNUG_EVERY_WIDTH
#endif

namespace snug::ops {
namespace {

constexpr std::int64_t kGrain = 1 << 14;  // elements worth a thread

// How a weight is read and written, by what stands behind it.
struct Plain {
  float* weights;
  SNUG_ANYWHERE float read(std::int64_t i) const { return weights[i]; }
  SNUG_ANYWHERE void write(std::int64_t i, float value) const { weights[i] = value; }
};
template <class T>
struct WithMaster {
  T* weights;
  float* masters;
  SNUG_ANYWHERE float read(std::int64_t i) const { return masters[i]; }
  SNUG_ANYWHERE void write(std::int64_t i, float value) const {
    masters[i] = value;
    weights[i] = static_cast<T>(value);
  }
};
struct WithRemainder {
  std::uint16_t* weights;
  std::int16_t* remainders;
  SNUG_ANYWHERE float read(std::int64_t i) const { return SplitFloat{weights[i], remainders[i]}.joined(); }
  SNUG_ANYWHERE void write(std::int64_t i, float value) const {
    const SplitFloat split = SplitFloat::of(value);
    weights[i] = split.nearest;
    remainders[i] = split.remainder;
  }
};

template <class Rule, class Weights, class Gradient>
SNUG_EVERY_WIDTH void update_range(const Rule& rule, Weights weights, const Gradient* gradients, float* first,
                                   float* second, std::int64_t begin, std::int64_t end, float factor) {
  const Rule each = rule;
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    float weight = weights.read(i), one = 0, two = 0;
    if constexpr (Rule::kStates > 0) one = first[i];
    if constexpr (Rule::kStates > 1) two = second[i];
    each.update(weight, one, two, static_cast<float>(gradients[i]) * factor);
    weights.write(i, weight);
    if constexpr (Rule::kStates > 0) first[i] = one;
    if constexpr (Rule::kStates > 1) second[i] = two;
  }
}

template <class Rule, class Weights, class Gradient>
void update_all(const Rule& rule, Weights weights, const Gradient* gradients, float* first, float* second,
                std::int64_t count, float factor) {
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    update_range(rule, weights, gradients, first, second, begin, end, factor);
  });
}

template <class Use>
void with_gradients(const at::Tensor& gradient, Use use) {
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return use(gradient.const_data_ptr<float>());
    case at::kBFloat16:
      return use(gradient.const_data_ptr<c10::BFloat16>());
    default:
      return use(gradient.const_data_ptr<c10::Half>());
  }
}

template <class Use>
void with_weights(const at::Tensor& weight, const at::Tensor& master, Use use) {
  switch (weight_kind(weight, master)) {
    case WeightKind::Plain:
      return use(Plain{weight.mutable_data_ptr<float>()});
    case WeightKind::Bf16Master:
      return use(WithMaster<c10::BFloat16>{weight.mutable_data_ptr<c10::BFloat16>(),
                                           master.mutable_data_ptr<float>()});
    case WeightKind::HalfMaster:
      return use(
          WithMaster<c10::Half>{weight.mutable_data_ptr<c10::Half>(), master.mutable_data_ptr<float>()});
    case WeightKind::Remainder:
      return use(WithRemainder{static_cast<std::uint16_t*>(weight.mutable_data_ptr()),
                               master.mutable_data_ptr<std::int16_t>()});
  }
}

struct Cpu {
  template <class Rule>
  static void update(const Rule& rule, const UpdateLists& lists) {
    if (lists.skip && *lists.skip->const_data_ptr<float>() != 0) return;
    const float factor = lists.factor ? *lists.factor->const_data_ptr<float>() : 1;
    for (std::size_t i = 0; i < lists.weights.size(); ++i) {
      const Rule at_step = rule.at_step(lists.steps.empty() ? 0 : *lists.steps[i].const_data_ptr<float>());
      const auto state = [&](int which) {
        return which < Rule::kStates ? lists.states[which][i].template mutable_data_ptr<float>() : nullptr;
      };
      with_weights(lists.weights[i], lists.masters[i], [&](auto weights) {
        with_gradients(lists.gradients[i], [&](auto* gradients) {
          update_all(at_step, weights, gradients, state(0), state(1), lists.weights[i].numel(), factor);
        });
      });
    }
  }
};

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("adamw_", TORCH_FN(UpdateOperators<Cpu>::adamw));
  library.impl("sgd_", TORCH_FN(UpdateOperators<Cpu>::sgd));
}

}  // namespace
}  // namespace snug::ops
