// Clipping gradients by their global norm, without waiting for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/base/export.h"

namespace snug::optim {

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), as torch does; max_norm 0 only measures.
// Returns the 2-norm before scaling as a 0-dim fp32 tensor on the gradients' device, and never reads it:
// nothing waits for the device, and Meta tensors work. Norm and factor are fp32 for bf16 gradients too (the
// CPU then holds one of them at a time as fp32). Undefined gradients are skipped; the others must be on one
// device.
SNUG_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace snug::optim
