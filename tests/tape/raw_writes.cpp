#include "tests/tape/raw_writes.h"

namespace snug::tape {

void raw_scale(const at::Tensor& tensor, float factor, std::int64_t first, std::int64_t last) {
  auto* const data = static_cast<float*>(tensor.storage().mutable_data()) + tensor.storage_offset();
  for (std::int64_t i = first; i < last; ++i) data[i] *= factor;
}

}  // namespace snug::tape
