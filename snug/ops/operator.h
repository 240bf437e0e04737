// An operator of ours, as the dispatcher knows it. Internal to ops.
//
//   static const auto op = find_operator<decltype(rms_norm_with_rstd)>("snug::rms_norm");
//   return op.call(x, weight, eps);
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace snug::ops {

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// By an operator that writes and returns nothing: autograd and the tape look whether a tensor is still what
// it was.
inline void note_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace snug::ops
