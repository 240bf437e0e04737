// Tensors among an operator's arguments or results. Internal to tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace snug::tape {

// call(tensor, place): the place in a list, or -1 for an argument that is a tensor itself.
template <class Call>
void each_tensor(const c10::IValue& argument, Call call) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) call(argument.toTensor(), -1);
    return;
  }
  if (!argument.isList()) return;
  int place = 0;
  for (const c10::IValue& element : argument.toListRef()) {
    if (!element.isTensor() && !element.isNone()) return;
    if (element.isTensor() && element.toTensor().defined()) call(element.toTensor(), place);
    ++place;
  }
}

}  // namespace snug::tape
