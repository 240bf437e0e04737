// How attention's tensors lie in memory. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

// cuDNN's result lies in memory in the order of the query's dimensions, without its gaps. So that it is by
// token, ready for the projection behind it, a query in another order is copied.
inline at::Tensor in_order_of_tokens(const at::Tensor& query) {
  const bool is_ordered = query.stride(0) >= query.size(2) * query.stride(2) &&
                          query.stride(2) >= query.size(1) * query.stride(1) &&
                          query.stride(1) >= query.size(3);
  return is_ordered ? query : query.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace snug::ops
