// What an optimizer does to one number. For CPU and CUDA; torch-free.
#pragma once

#include <cmath>

#include "snug/ops/split_float.h"

namespace snug::ops {

// On a GPU in one rounding, as torch has it there; on the CPU that would be a call for every number.
SNUG_ANYWHERE inline float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// beta * average + (1 - beta) * value.
SNUG_ANYWHERE inline float moved_towards(float average, float value, float beta) {
#ifdef __CUDA_ARCH__
  return fmaf(beta, average, fmaf(-beta, value, value));  // as torch has it there
#else
  return beta * average + (1 - beta) * value;  // 1 - beta is exact
#endif
}

// In torch's order of arithmetic: on CUDA that of its fused kernel, on the CPU that of its plain optimizer.
struct AdamWRule {
  static constexpr int kStates = 2;

  float lr, beta1, beta2, weight_decay, eps;
  float kept;                           // of a weight that decays: 1 - lr * weight_decay
  float correction1, correction2_root;  // 1 - beta1^step, and the root of 1 - beta2^step

  SNUG_ANYWHERE AdamWRule at_step(float step) const {
    AdamWRule rule = *this;
#ifdef __CUDA_ARCH__  // as torch has it there
    rule.correction1 = 1 - powf(beta1, step);
    rule.correction2_root = sqrtf(1 - powf(beta2, step));
#else  // the difference from 1 is small, and loses its digits in fp32
    rule.correction1 = static_cast<float>(1 - std::pow(static_cast<double>(beta1), step));
    rule.correction2_root = static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(beta2), step)));
#endif
    return rule;
  }

  SNUG_ANYWHERE void update(float& weight, float& exp_avg, float& exp_avg_sq, float gradient) const {
#ifdef __CUDA_ARCH__
    weight -= lr * weight_decay * weight;
#else
    weight *= kept;
#endif
    exp_avg = moved_towards(exp_avg, gradient, beta1);
    exp_avg_sq = moved_towards(exp_avg_sq, gradient * gradient, beta2);
    const float denominator = sqrtf(exp_avg_sq) / correction2_root + eps;
    weight -= lr / correction1 * exp_avg / denominator;
  }
};

template <bool kHasMomentum>
struct SgdRule {
  static constexpr int kStates = kHasMomentum ? 1 : 0;

  float lr, momentum, weight_decay;

  SNUG_ANYWHERE SgdRule at_step(float) const { return *this; }

  SNUG_ANYWHERE void update(float& weight, float& buffer, float&, float gradient) const {
    const float decayed = multiply_add(weight_decay, weight, gradient);
    buffer = kHasMomentum ? multiply_add(momentum, buffer, decayed) : decayed;
    weight = multiply_add(-lr, buffer, weight);
  }
};

// Where the fp32 value of a weight is.
enum class WeightKind { Plain, Bf16Master, HalfMaster, Remainder };

}  // namespace snug::ops
