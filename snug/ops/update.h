// One step of an optimizer over many tensors: each number of theirs is read once and written once.
//
//   adamw_({.weights = ..., .gradients = ..., .masters = ..., ...}, {.lr = 3e-4});
//
// The arithmetic is fp32 and torch's, in its order (see update_arithmetic.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "snug/base/export.h"

namespace snug::ops {

// All lists have one entry per parameter, on one device, contiguous, of the parameter's sizes.
struct UpdateTensors {
  std::vector<at::Tensor> weights;    // fp32, bf16 or fp16
  std::vector<at::Tensor> gradients;  // fp32 or as the weight
  // Of a 16-bit weight: its fp32 master; of a bf16 one also an int16 remainder (see split_float.h). Of an
  // fp32 weight: itself.
  std::vector<at::Tensor> masters;
};

// In which arithmetic a step is taken. CPU and GPU round differently; with `Cuda` the CPU writes the bits
// that a GPU would have written, for parameters that are a GPU's. It needs a CPU that multiplies and adds in
// one rounding.
enum class Arithmetic { OfDevice, Cuda };

// Factor and skip are fp32 scalars on the device, so that nobody waits for them.
struct UpdateControl {
  std::optional<at::Tensor> factor;  // multiplies all gradients first: to clip and to undo a loss scale
  std::optional<at::Tensor> skip;    // unless it is 0, nothing is written
  Arithmetic arithmetic = Arithmetic::OfDevice;
};

struct AdamWTensors : UpdateTensors {
  std::vector<at::Tensor> exp_avgs, exp_avg_sqs;  // fp32
  // fp32, one element: the number of this step, from 1. On the CPU it may be two, its adamw_corrections; with
  // Arithmetic::Cuda it must: made on the GPU and copied, because no CPU repeats a GPU's powf.
  std::vector<at::Tensor> steps;
};

struct AdamWNumbers {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, weight_decay = 1e-2, eps = 1e-8;
};

struct SgdTensors : UpdateTensors {
  std::vector<at::Tensor> momenta;  // fp32; none at all without momentum
};

struct SgdNumbers {
  double lr = 1e-3, momentum = 0, weight_decay = 0;
};

SNUG_API void adamw_(const AdamWTensors& tensors, const AdamWNumbers& numbers,
                     const UpdateControl& control = {});
// What adamw_ makes of the numbers of steps, fp32 of any sizes: two more numbers for each, on the same
// device.
SNUG_API at::Tensor adamw_corrections(const at::Tensor& steps, const AdamWNumbers& numbers);
SNUG_API void sgd_(const SgdTensors& tensors, const SgdNumbers& numbers, const UpdateControl& control = {});

}  // namespace snug::ops
