// Meta kernels for the operators of a training step that ATen 2.11 gives no Meta kernel in C++ (PyTorch has
// them in Python).
//
//   register_meta_kernels();
//   auto loss = model->loss_sum(tokens, targets);   // all on kMeta: sizes are computed, no memory is taken
//   loss.backward();
//
// Each kernel makes the results of the CPU kernel, sizes, strides and dtypes alike, and takes and drops the
// CPU kernel's scratch memory in its order, so that the bytes counted on Meta are those of a CPU run on as
// many threads (a convolution's copies in oneDNN's own layouts excepted). What depends on values, such as
// item() or nonzero(), stays an error that names the operator.
#pragma once

#include "snug/base/export.h"

namespace snug::capture {

// For the rest of the process, only where a kernel is missing; any further call does nothing. Not for a
// process that has imported torch in Python, which registers kernels of its own.
SNUG_API void register_meta_kernels();

}  // namespace snug::capture
