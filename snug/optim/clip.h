// Clipping gradients by their global norm, without waiting for the device.
//
//   const at::Tensor norm = grad_norm(optimizer.gradients());
//   optimizer.step(lr, {.factor = clip_factor(norm, 1.0)});  // clips on the way
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/base/export.h"

namespace snug::optim {

// The 2-norm over all gradients as a 0-dim fp32 tensor on their device, and never reads it: nothing waits for
// the device, and Meta tensors work. fp32 for 16-bit gradients too (the CPU then holds one of them at a time
// as fp32). Undefined gradients are skipped; the others must be on one device.
SNUG_API at::Tensor grad_norm(const std::vector<at::Tensor>& gradients);

// The same from the norm of each.
SNUG_API at::Tensor norm_of_norms(const std::vector<at::Tensor>& norms);

// Of these gradients, in this order, where a norm is not known yet: undefined.
SNUG_API void fill_in_norms(std::vector<at::Tensor>& norms, const std::vector<at::Tensor>& gradients);

// min(1, max_norm / (norm + 1e-6)), as torch has it. max_norm is above 0.
SNUG_API at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

// The same for gradients that others read: scales them all in place; max_norm 0 only measures. Returns the
// norm before scaling. The factor is fp32 for 16-bit gradients too.
SNUG_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace snug::optim
