// The numbers that an optimizer's rule has; update_arithmetic.h says what it does with them. For CPU and
// CUDA; torch-free.
#pragma once

#include <cmath>

#include "snug/ops/split_float.h"

namespace snug::ops {

struct AdamWRule {
  static constexpr int kStates = 2;

  float lr, beta1, beta2, weight_decay, eps;
  float kept;                           // of a weight that decays: 1 - lr * weight_decay
  float correction1, correction2_root;  // 1 - beta1^step, and the root of 1 - beta2^step

  SNUG_ANYWHERE AdamWRule corrected(float first, float second_root) const {
    AdamWRule rule = *this;
    rule.correction1 = first;
    rule.correction2_root = second_root;
    return rule;
  }

  SNUG_ANYWHERE AdamWRule at_step(float step) const {
#ifdef __CUDA_ARCH__  // as torch has it there
    return corrected(1 - powf(beta1, step), sqrtf(1 - powf(beta2, step)));
#else  // the difference from 1 is small, and loses its digits in fp32
    return corrected(static_cast<float>(1 - std::pow(static_cast<double>(beta1), step)),
                     static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(beta2), step))));
#endif
  }
};

template <bool kHasMomentum>
struct SgdRule {
  static constexpr int kStates = kHasMomentum ? 1 : 0;

  float lr, momentum, weight_decay;

  SNUG_ANYWHERE SgdRule corrected(float, float) const { return *this; }
  SNUG_ANYWHERE SgdRule at_step(float) const { return *this; }
};

// Numbers one by one, for update_arithmetic.h, in the arithmetic of CUDA or of the CPU.
template <bool kCuda>
struct Scalars {
  static constexpr bool kIsCuda = kCuda;

  SNUG_ANYWHERE float all(float value) const { return value; }
  SNUG_ANYWHERE float root(float value) const { return sqrtf(value); }
  SNUG_ANYWHERE float fused(float a, float b, float c) const { return fmaf(a, b, c); }
};

// Where the fp32 value of a weight is.
enum class WeightKind { Plain, Bf16Master, HalfMaster, Remainder };

}  // namespace snug::ops
