// Tensors among an operator's arguments or results, and what they are. Internal to capture.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace snug::capture {

using Entries = c10::ArrayRef<c10::IValue>;

template <class Use>
void each_tensor(Entries entries, Use use) {
  for (const c10::IValue& entry : entries) {
    if (entry.isTensor() && entry.toTensor().defined()) use(entry.toTensor());
    if (!entry.isTensorList()) continue;
    for (const at::Tensor& tensor : entry.toTensorVector())
      if (tensor.defined()) use(tensor);
  }
}

inline bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

}  // namespace snug::capture
