// How a tensor lies on its storage: enough to put it back there without running an operator. Internal to
// tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

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

// A dense tensor of torch's own class on CPU, CUDA or Meta. Anything else (sparse, nested, quantized,
// wrapped, inference tensors, zeros without memory) is left as it is.
bool is_plain(const at::Tensor& tensor);

at::Tensor bytes_of(const c10::Storage& storage);   // as a flat tensor
c10::Storage copy_of(const c10::Storage& storage);  // an operator, seen by listeners
c10::Storage no_storage(c10::Device device);        // for arguments of which only the shape is read

}  // namespace snug::tape
