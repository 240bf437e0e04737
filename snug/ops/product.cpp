// The operator, and its kernel for CPU and Meta: ATen's. CUDA's is in product_cuda.cpp.
#include "snug/ops/product.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "snug/ops/operator.h"
#include "snug/ops/product_by_aten.h"

namespace snug::ops {
namespace {

void run(at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
         const std::optional<at::Tensor>& bias, bool adds) {
  static const auto op = find_operator<decltype(run)>("snug::product_");
  op.call(out, left, right, bias, adds);
  note_written(out);
}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("product_(Tensor(a!) out, Tensor left, Tensor right, Tensor? bias, bool adds) -> ()");
}

TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("product_", TORCH_FN(product_by_aten));
}

TORCH_LIBRARY_IMPL(snug, Autograd, library) {
  library.impl("product_", torch::autograd::autogradNotImplementedFallback());
}

at::Tensor empty_product(const at::Tensor& left, const at::Tensor& right, at::ScalarType dtype) {
  return at::empty({left.size(0), right.size(1)}, left.options().dtype(dtype));
}

}  // namespace

at::Tensor product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& bias) {
  at::Tensor out = empty_product(left, right, left.scalar_type());
  run(out, left, right, bias.defined() ? std::optional(bias) : std::nullopt, /*adds=*/false);
  return out;
}

at::Tensor product_as(at::ScalarType dtype, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor out = empty_product(left, right, dtype);
  run(out, left, right, {}, /*adds=*/false);
  return out;
}

void product_into(at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  run(out, left, right, {}, /*adds=*/false);
}

void add_product(at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  run(sum, left, right, {}, /*adds=*/true);
}

}  // namespace snug::ops
