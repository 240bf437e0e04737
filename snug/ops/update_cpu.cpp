// Optimizer steps on the CPU, in vectors. Highway includes this file once for each kind of them that it
// knows, and calls what was made for the best that the machine has. All round alike.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "snug/base/error.h"
#include "snug/ops/update_dispatch.h"

// SSSE3 would be nearly SSE4 again; vectors whose length the compiler does not know have no operators.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "snug/ops/update_cpu.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace snug::ops {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#include "snug/ops/update_arithmetic.h"
#include "snug/ops/update_lanes.h"

// How weights are read and written, by what stands behind them.
struct Plain {
  using Weight = float;
  float* weights;
  template <class Math>
  HWY_INLINE auto read(Math math, std::int64_t i) const {
    return math.load(weights + i);
  }
  template <class Math>
  HWY_INLINE void write(Math math, std::int64_t i, typename Math::Number value) const {
    math.store(value, weights + i);
  }
};
template <class T>
struct WithMaster {
  using Weight = T;
  T* weights;
  float* masters;
  template <class Math>
  HWY_INLINE auto read(Math math, std::int64_t i) const {
    math.prefetch(weights + i);
    return math.load(masters + i);
  }
  template <class Math>
  HWY_INLINE void write(Math math, std::int64_t i, typename Math::Number value) const {
    math.store(value, masters + i);
    math.store(value, weights + i);
  }
};
struct WithRemainder {
  using Weight = c10::BFloat16;
  c10::BFloat16* weights;
  std::int16_t* remainders;
  template <class Math>
  HWY_INLINE auto read(Math math, std::int64_t i) const {
    return math.joined(weights + i, remainders + i);
  }
  template <class Math>
  HWY_INLINE void write(Math math, std::int64_t i, typename Math::Number value) const {
    math.split(value, weights + i, remainders + i);
  }
};

template <class Math, class Rule, class Weights, class Gradient>
HWY_INLINE void update_lanes(Math math, const Rule& rule, Weights weights, const Gradient* gradients,
                             float* const* states, std::int64_t i, float factor) {
  auto weight = weights.read(math, i), first = math.all(0), second = first;
  if constexpr (Rule::kStates > 0) first = math.load(states[0] + i);
  if constexpr (Rule::kStates > 1) second = math.load(states[1] + i);
  update(rule, math, weight, first, second, math.load(gradients + i) * math.all(factor));
  weights.write(math, i, math.written(weight));
  if constexpr (Rule::kStates > 0) math.store(math.written(first), states[0] + i);
  if constexpr (Rule::kStates > 1) math.store(math.written(second), states[1] + i);
}

template <bool kCuda, class Rule, class Weights, class Gradient>
void update_range(const Rule& rule, Weights weights, const Gradient* gradients, float* const* states,
                  std::int64_t i, std::int64_t end, float factor) {
  using Vector = hn::ScalableTag<float>;
  const Rule each = rule;
  float* const each_state[] = {states[0], states[1]};
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Vector()));
  for (; i + lanes <= end; i += lanes)
    update_lanes(Lanes<kCuda, Vector>(), each, weights, gradients, each_state, i, factor);
  for (; i < end; ++i)
    update_lanes(Lanes<kCuda, hn::CappedTag<float, 1>>(), each, weights, gradients, each_state, i, factor);
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
      return use(
          WithRemainder{weight.mutable_data_ptr<c10::BFloat16>(), master.mutable_data_ptr<std::int16_t>()});
  }
}

// Parameter `which` of the lists, from one element to another.
void update_stretch(const AnyRule& any_rule, const UpdateLists& lists, std::size_t which, std::int64_t begin,
                    std::int64_t end, float factor) {
  const auto update_with = [&](auto as_cuda, const auto& rule) {
    float* states[2] = {};
    for (int state = 0; state < rule.kStates; ++state)
      states[state] = lists.states[state][which].template mutable_data_ptr<float>();
    const at::Tensor& gradient = lists.gradients[which];
    with_weights(lists.weights[which], lists.masters[which], [&](auto weights) {
      const auto update_from = [&](const auto* gradients) {
        update_range<as_cuda.value>(rule, weights, gradients, states, begin, end, factor);
      };
      if (gradient.scalar_type() == at::kFloat)
        update_from(gradient.const_data_ptr<float>());
      else
        update_from(gradient.const_data_ptr<typename decltype(weights)::Weight>());
    });
  };
  std::visit(
      [&](const auto& rule) {
        if (lists.arithmetic == Arithmetic::OfDevice) return update_with(std::false_type(), rule);
        if constexpr (HWY_NATIVE_FMA) return update_with(std::true_type(), rule);
        fail(
            "an optimizer's step in the arithmetic of CUDA needs a CPU that multiplies and adds in one "
            "rounding (FMA), and this one does not; take the step on the GPU");
      },
      any_rule);
}

}  // namespace HWY_NAMESPACE
}  // namespace snug::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace snug::ops {
namespace {

HWY_EXPORT(update_stretch);

// Threads begin at whole blocks, which are aligned if the tensor is.
constexpr std::int64_t kBlock = 1 << 10;
constexpr std::int64_t kGrain = 16;  // blocks worth a thread

struct Cpu {
  template <class Rule>
  static void update(const Rule& rule, const UpdateLists& lists) {
    if (lists.skip && *lists.skip->const_data_ptr<float>() != 0) return;
    const float factor = lists.factor ? *lists.factor->const_data_ptr<float>() : 1;
    for (std::size_t i = 0; i < lists.weights.size(); ++i) {
      const AnyRule at_step = lists.steps.empty() ? rule : rule_at(rule, lists, i);
      const std::int64_t count = lists.weights[i].numel();
      at::parallel_for(0, (count + kBlock - 1) / kBlock, kGrain, [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(update_stretch)
        (at_step, lists, i, begin * kBlock, std::min(end * kBlock, count), factor);
      });
    }
  }

  template <class Rule>
  static Rule rule_at(const Rule& rule, const UpdateLists& lists, std::size_t i) {
    const float* step = lists.steps[i].const_data_ptr<float>();
    return lists.steps[i].numel() == 2 ? rule.corrected(step[0], step[1]) : rule.at_step(*step);
  }

  static void correct(const AdamWRule& rule, const at::Tensor& steps, const at::Tensor& corrections) {
    const float* step = steps.const_data_ptr<float>();
    float* to = corrections.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < steps.numel(); ++i) {
      const AdamWRule at_step = rule.at_step(step[i]);
      to[2 * i] = at_step.correction1;
      to[2 * i + 1] = at_step.correction2_root;
    }
  }
};

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("adamw_", TORCH_FN(UpdateOperators<Cpu>::adamw));
  library.impl("adamw_corrections", TORCH_FN(UpdateOperators<Cpu>::adamw_corrections));
  library.impl("sgd_", TORCH_FN(UpdateOperators<Cpu>::sgd));
}

}  // namespace
}  // namespace snug::ops
#endif
