// The operators, and their kernels for CPU and Meta: ATen's. CUDA's are in product_cuda.cpp.
#include "snug/ops/product.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "snug/hooks/meta_target.h"
#include "snug/ops/operator.h"
#include "snug/ops/product_by_aten.h"

namespace snug::ops {
namespace {

at::Tensor call_product(const at::Tensor& left, const at::Tensor& right,
                        const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  static const auto op = find_operator<decltype(call_product)>("snug::product");
  return op.call(left, right, bias, dtype);
}

void call_product_(at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  static const auto op = find_operator<decltype(call_product_)>("snug::product_");
  op.call(out, left, right, adds);
  note_written(out);
}

at::Tensor product_anywhere(const at::Tensor& left, const at::Tensor& right,
                            const std::optional<at::Tensor>& bias, at::ScalarType dtype) {
  if (!left.is_meta()) return product_by_aten(left, right, bias, dtype);
  // CUDA goes from halves to fp32 at once.
  at::Tensor out = hooks::meta_stands_for_cuda()
                       ? at::empty({left.size(0), right.size(1)}, left.options().dtype(dtype))
                       : product_by_aten(left, right, bias, dtype);
  hooks::after_product_on_meta();
  return out;
}

void product_anywhere_(at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds) {
  if (!left.is_meta() || !hooks::meta_stands_for_cuda()) product_by_aten_(out, left, right, adds);
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("product(Tensor left, Tensor right, Tensor? bias, ScalarType dtype) -> Tensor");
  library.def("product_(Tensor(a!) out, Tensor left, Tensor right, bool adds) -> ()");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("product", TORCH_FN(product_anywhere));
  library.impl("product_", TORCH_FN(product_anywhere_));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("product", torch::autograd::autogradNotImplementedFallback());
  library.impl("product_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  return call_product(left, right, bias.defined() ? std::optional(bias) : std::nullopt, left.scalar_type());
}

at::Tensor product_as(at::ScalarType dtype, const at::Tensor& left, const at::Tensor& right) {
  return call_product(left, right, {}, dtype);
}

void product_into(at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  call_product_(out, left, right, /*adds=*/false);
}

void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  call_product_(sum, left, right, /*adds=*/true);
}

}  // namespace snug::ops
