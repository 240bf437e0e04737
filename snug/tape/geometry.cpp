#include "snug/tape/geometry.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <typeinfo>

namespace snug::tape {

Geometry::Geometry(const at::Tensor& tensor)
    : keys(tensor.key_set()),
      dtype(tensor.dtype()),
      sizes(tensor.sizes()),
      strides(tensor.strides()),
      offset(tensor.storage_offset()),
      requires_grad(tensor.requires_grad()) {}

at::Tensor Geometry::on(c10::Storage storage) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void Span::cover(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  const std::uint64_t element = tensor.element_size();
  const std::uint64_t first = static_cast<std::uint64_t>(tensor.storage_offset()) * element;
  begin = std::min(begin, first / kAlignment * kAlignment);
  end = std::max(end, static_cast<std::uint64_t>(last + 1) * element);
}

bool is_plain(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return typeid(*impl) == typeid(c10::TensorImpl) && impl->has_storage() &&
         (tensor.is_cpu() || tensor.is_cuda() || tensor.is_meta()) && !impl->has_symbolic_sizes_strides() &&
         !impl->is_python_dispatch() && !impl->has_named_tensor_meta() && !tensor.is_inference() &&
         !tensor._is_zerotensor();
}

at::Tensor bytes_of(const c10::Storage& storage) {
  Geometry flat;
  flat.keys = c10::DispatchKeySet(storage.device().is_cuda()   ? c10::DispatchKey::CUDA
                                  : storage.device().is_meta() ? c10::DispatchKey::Meta
                                                               : c10::DispatchKey::CPU);
  flat.dtype = caffe2::TypeMeta::Make<std::uint8_t>();
  flat.sizes = {static_cast<std::int64_t>(storage.nbytes())};
  flat.strides = {1};
  return flat.on(storage);
}

c10::Storage copy_of(const c10::Storage& storage) {
  return at::clone(bytes_of(storage)).storage();
}

c10::Storage no_storage(c10::Device device) {
  return {c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false};
}

}  // namespace snug::tape
