// The bytes of a storage that someone needs. Internal to tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace snug::tape {

struct Span {
  static constexpr std::uint64_t kAlignment = 16;

  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;

  std::uint64_t size() const { return end > begin ? end - begin : 0; }
  void* in(const c10::Storage& storage) const { return static_cast<char*>(storage.mutable_data()) + begin; }

  void cover(const at::Tensor& tensor) {
    if (tensor.numel() == 0) return;
    std::int64_t last = tensor.storage_offset();
    for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    const std::uint64_t element = tensor.element_size();
    const std::uint64_t first = static_cast<std::uint64_t>(tensor.storage_offset()) * element;
    begin = std::min(begin, first / kAlignment * kAlignment);
    end = std::max(end, static_cast<std::uint64_t>(last + 1) * element);
  }
};

}  // namespace snug::tape
