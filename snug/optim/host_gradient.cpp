#include "snug/optim/host_gradient.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <utility>

#include "snug/base/error.h"

namespace snug::optim {

namespace {

std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

at::Tensor stand_in(const at::Tensor& parameter, at::ScalarType dtype, const std::string& region) {
  at::Tensor away = at::empty({0}, parameter.options().dtype(dtype).requires_grad(false));
  away.unsafeGetTensorImpl()->set_storage_keep_dtype(host::no_contents(
      parameter.device(), static_cast<std::uint64_t>(parameter.numel()) * c10::elementSize(dtype),
      concat("this gradient of region \"", region,
             "\" is on the host: the optimizer has its norm (gradient_norm()) and clips in step()")));
  away.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
  return away;
}

}  // namespace

HostGradient::HostGradient(const at::Tensor& parameter, at::Tensor host, host::Link* link,
                           const std::string& region)
    : parameter_(parameter),
      host_(std::move(host)),
      link_(link),
      away_(stand_in(parameter, host_.scalar_type(), region)) {}

HostGradient::~HostGradient() {
  try {
    finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy of a gradient failed: ", error.what());
  }
}

// Whoever cleared grad() meanwhile, or put another there, has done away with it.
bool HostGradient::has_sum() const {
  const at::Tensor parameter = parameter_.lock();
  return parameter.defined() && parameter.grad().is_same(away_);
}

void HostGradient::fetch() {
  if (here_.defined() || !has_sum()) return;
  const at::Tensor here = at::empty_like(away_, at::MemoryFormat::Contiguous);
  if (link_)
    fetched_ = link_->copy_to_device(here.mutable_data_ptr(), host_.const_data_ptr(), here.nbytes(), nullptr);
  here_ = here;
}

void HostGradient::use() {
  fetch();
  if (here_.defined() && !is_sent_ && fetched_) wait_for_fetched();
  if (!is_sent_ && has_sum()) parameter_.lock().mutable_grad() = here_;
  here_.reset();
  is_sent_ = false;
}

// If the copy failed nothing is here.
void HostGradient::wait_for_fetched() {
  try {
    fetched_->wait();
  } catch (...) {
    fetched_ = nullptr;
    here_.reset();
    throw;
  }
}

bool HostGradient::send() {
  const at::Tensor parameter = parameter_.lock();
  if (!parameter.defined() || !parameter.grad().defined() || parameter.grad().is_same(away_)) return false;
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided || !gradient.is_contiguous() ||
      gradient.scalar_type() != host_.scalar_type())
    return false;
  if (link_)
    sent_ =
        link_->copy_to_host(gradient.const_data_ptr(), host_.mutable_data_ptr(), gradient.nbytes(), nullptr);
  here_ = gradient;
  is_sent_ = true;
  sent_version_ = version_of(here_);
  return true;
}

void HostGradient::leave() {
  if (!is_sent_) return;
  if (version_of(here_) != sent_version_) {
    norm_ = at::_foreach_norm({here_}, 2, at::kFloat)[0];
    is_sent_ = false;
    if (!send()) return here_.reset();  // somebody cleared it, or made it another kind of tensor, which stays
  }
  const at::Tensor here = std::exchange(here_, {});
  is_sent_ = false;
  if (sent_) wait_for_sent();
  const at::Tensor parameter = parameter_.lock();
  if (parameter.defined() && parameter.grad().is_same(here)) parameter.mutable_grad() = away_;
}

// If the copy failed the gradient is still here.
void HostGradient::wait_for_sent() {
  try {
    sent_->wait();
  } catch (...) {
    sent_ = nullptr;
    throw;
  }
}

void HostGradient::finish() {
  host::finish_all(copies());
}

// Whoever was given the sum on the host may have changed it: then there is none.
at::Tensor HostGradient::norm() const {
  if (norm_.defined()) return norm_;
  const auto scalar = at::TensorOptions(away_.device()).dtype(at::kFloat);
  return link_ ? at::_foreach_norm({host_}, 2, at::kFloat)[0].to(scalar) : at::empty({}, scalar);
}

void HostGradient::forget() {
  const at::Tensor here = std::exchange(here_, {});  // until nobody copies to or from it
  const bool was_sent = std::exchange(is_sent_, false);
  norm_.reset();
  const at::Tensor parameter = parameter_.lock();
  if (parameter.defined() &&
      (parameter.grad().is_same(away_) || (was_sent && parameter.grad().is_same(here))))
    parameter.mutable_grad().reset();
  if (here.defined() && was_sent && sent_) wait_for_sent();
  if (here.defined() && !was_sent && fetched_) wait_for_fetched();  // no backward used it
}

}  // namespace snug::optim
