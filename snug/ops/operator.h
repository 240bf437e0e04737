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

}  // namespace snug::ops
