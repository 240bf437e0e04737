// The update of one number. For CPU and CUDA; torch-free.
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

struct AdamWMath {
  float lr, beta1, beta2, weight_decay, eps;
  float correction1, correction2_root;  // 1 - beta1^step, and the root of 1 - beta2^step

  // In the order of torch's fused kernel.
  SNUG_ANYWHERE void update(float& weight, float& exp_avg, float& exp_avg_sq, float gradient) const {
    if (weight_decay != 0) weight -= lr * weight_decay * weight;
    exp_avg = multiply_add(beta1, exp_avg, multiply_add(-beta1, gradient, gradient));
    const float square = gradient * gradient;
    exp_avg_sq = multiply_add(beta2, exp_avg_sq, multiply_add(-beta2, square, square));
    const float denominator = sqrtf(exp_avg_sq) / correction2_root + eps;
    weight -= lr / correction1 * exp_avg / denominator;
  }
};

}  // namespace snug::ops
