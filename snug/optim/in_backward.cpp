#include "snug/optim/in_backward.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace snug::optim {

InBackward::InBackward(const std::vector<at::Tensor>& parameters,
                       std::function<bool(hooks::RegionId)> is_told, std::function<void()> wait)
    : is_told_(std::move(is_told)), wait_(std::move(wait)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) numbers_[parameters[i].unsafeGetTensorImpl()] = i;
}

void InBackward::begin(std::function<void(const std::vector<std::size_t>&)> update,
                       std::function<void()> stream) {
  const std::lock_guard lock(mutex_);
  update_ = std::move(update);
  stream_ = std::move(stream);
  complete_.clear();
}

void InBackward::end() {
  begin(nullptr, nullptr);
}

// Autograd has added up all that a backward adds to it, so nobody in it reads the weight any more.
void InBackward::gradient_ready(const at::Tensor& leaf) {
  const std::lock_guard lock(mutex_);
  const auto found = numbers_.find(leaf.unsafeGetTensorImpl());
  if (!update_ || found == numbers_.end()) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  if (complete_.empty()) stream_();
  complete_.push_back(found->second);
}

void InBackward::after_backward(hooks::RegionId region) {
  if (!is_told_(region)) take_complete();
}

void InBackward::take_complete() {
  const std::lock_guard lock(mutex_);
  if (complete_.empty()) return;
  const hooks::AsideScope aside;
  const at::NoGradGuard no_grad;
  update_(std::exchange(complete_, {}));
}

}  // namespace snug::optim
