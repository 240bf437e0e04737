#include "snug/optim/clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "snug/base/error.h"

namespace snug::optim {
namespace {

// CUDA rounds a 0-dim fp32 factor to bf16 before it multiplies a bf16 tensor, the CPU does not. With as many
// dimensions as the gradient the factor stays fp32 on CUDA; on the CPU that would cost a copy.
at::Tensor factor_for(const at::Tensor& gradient, const at::Tensor& factor) {
  if (!gradient.is_cuda() || gradient.scalar_type() == at::kFloat) return factor;
  return factor.view(std::vector<std::int64_t>(static_cast<std::size_t>(gradient.dim()), 1));
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& gradients) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> defined;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) defined.push_back(gradient);
  }
  return norm_of_norms(defined.empty() ? defined : at::_foreach_norm(defined, 2, at::kFloat));
}

at::Tensor norm_of_norms(const std::vector<at::Tensor>& norms) {
  return norms.empty() ? at::zeros({}, at::kFloat) : at::linalg_vector_norm(at::stack(norms), 2);
}

void fill_in_norms(std::vector<at::Tensor>& norms, const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return;
  const std::vector<at::Tensor> found = at::_foreach_norm(gradients, 2, at::kFloat);
  auto next = found.begin();
  for (at::Tensor& norm : norms)
    if (!norm.defined()) norm = *next++;
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  check(max_norm > 0, "the norm to clip to must be above 0, got ", max_norm);
  return (max_norm / (norm + 1e-6)).clamp_max_(1.0);
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& gradients, double max_norm) {
  check(max_norm >= 0, "the norm to clip to must be at least 0 (0 = only measure), got ", max_norm);
  at::NoGradGuard no_grad;
  const at::Tensor norm = grad_norm(gradients);
  if (max_norm == 0) return norm;
  const at::Tensor factor = clip_factor(norm, max_norm);
  for (at::Tensor gradient : gradients)
    if (gradient.defined()) gradient.mul_(factor_for(gradient, factor));
  return norm;
}

}  // namespace snug::optim
