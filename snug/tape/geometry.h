// How a tensor lies on its storage: enough to put it back there without running an operator. Internal to
// tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <limits>

namespace snug::tape {

struct Geometry {
  Geometry() = default;
  explicit Geometry(const at::Tensor& tensor);
  at::Tensor on(c10::Storage storage) const;

  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  at::DimVector sizes, strides;
  std::int64_t offset = 0;
  bool requires_grad = false;  // says nothing below autograd, but kernels may look at it
};

// The bytes of a storage that someone needs.
struct Span {
  static constexpr std::uint64_t kAlignment = 16;

  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;

  std::uint64_t size() const { return end > begin ? end - begin : 0; }
  void* in(const c10::Storage& storage) const { return static_cast<char*>(storage.mutable_data()) + begin; }
  void cover(const at::Tensor& tensor);
};

// A dense tensor of torch's own class on CPU, CUDA or Meta. Anything else (sparse, nested, quantized,
// wrapped, inference tensors, zeros without memory) is left as it is.
bool is_plain(const at::Tensor& tensor);

at::Tensor bytes_of(const c10::Storage& storage);   // as a flat tensor
c10::Storage copy_of(const c10::Storage& storage);  // an operator, seen by listeners
c10::Storage no_storage(c10::Device device);        // for arguments of which only the shape is read

}  // namespace snug::tape
