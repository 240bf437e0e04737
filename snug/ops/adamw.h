// One step of AdamW over many tensors: each number of theirs is read once and written once.
//
//   adamw_({.weights = ..., .gradients = ..., .masters = ..., ...}, {.lr = 3e-4});
//
// The arithmetic is that of torch's fused AdamW in fp32: decoupled decay, bias correction, eps outside the
// root.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "snug/base/export.h"

namespace snug::ops {

// All lists have one entry per parameter, on one device, contiguous, of the parameter's sizes.
struct AdamWTensors {
  std::vector<at::Tensor> weights;    // fp32 or bf16
  std::vector<at::Tensor> gradients;  // fp32 or bf16
  // Of a bf16 weight: its fp32 master, or an int16 remainder (see split_float.h). Of an fp32 weight: itself.
  std::vector<at::Tensor> masters;
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;  // fp32
  std::vector<at::Tensor> steps;                  // fp32, one element: the number of this step, from 1
};

struct AdamWNumbers {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, weight_decay = 1e-2, eps = 1e-8;
};

// `factor`, an fp32 scalar on the device, multiplies all gradients first: to clip and to undo a loss scale.
SNUG_API void adamw_(const AdamWTensors& tensors, const AdamWNumbers& numbers,
                     const std::optional<at::Tensor>& factor = std::nullopt);

}  // namespace snug::ops
