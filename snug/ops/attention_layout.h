// How attention's tensors lie in memory. Internal to ops.
#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

// cuDNN's result lies in memory in the order of the query's dimensions, without its gaps. So that it is by
// token, ready for the projection behind it, a query in another order is copied, and so is one whose vectors
// do not begin at multiples of 16 bytes.
inline at::Tensor in_order_of_tokens(const at::Tensor& query) {
  constexpr std::int64_t kAligned = 8;  // elements
  const bool is_ordered = query.stride(0) >= query.size(2) * query.stride(2) &&
                          query.stride(2) >= query.size(1) * query.stride(1) &&
                          query.stride(1) >= query.size(3);
  const bool is_aligned = query.storage_offset() % kAligned == 0 && query.stride(0) % kAligned == 0 &&
                          query.stride(1) % kAligned == 0 && query.stride(2) % kAligned == 0;
  return is_ordered && is_aligned ? query : query.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace snug::ops
