#include "snug/optim/host_weight.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/region.h"

namespace snug::optim {

namespace {

void set_storage(const at::Tensor& tensor, const c10::Storage& storage) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(storage);
  impl->set_allow_tensor_metadata_change(allowed);
}

std::string why_away(const std::string& region) {
  return concat("this weight is on the host: it is on the device while region \"", region,
                "\" runs. Between steps read and write it through the optimizer's weight().");
}

}  // namespace

HostWeight::HostWeight(const at::Tensor& parameter, at::Tensor host, host::Link* link,
                       const std::string& region, std::function<void(const at::Tensor&)> before_write)
    : parameter_(parameter),
      host_(std::move(host)),
      link_(link),
      contents_(parameter.storage()),
      away_(no_contents(parameter.device(), why_away(region))),
      before_write_(std::move(before_write)),
      bytes_(parameter.nbytes()),
      is_here_(true),
      version_(version()) {
  check(parameter.is_contiguous() && parameter.storage_offset() == 0 && contents_.nbytes() == bytes_,
        "a weight that is to leave for the host must have its memory for itself: ", parameter.sizes(),
        " of region \"", region, "\" is a view");
  drop();
}

HostWeight::~HostWeight() {
  try {
    finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy of a weight failed: ", error.what());
  }
}

std::int64_t HostWeight::version() const {
  const at::Tensor parameter = parameter_.lock();
  return parameter.defined() ? parameter.unsafeGetTensorImpl()->version_counter().current_version()
                             : version_;
}

void HostWeight::note_update() {
  drop();
  if (const at::Tensor parameter = parameter_.lock(); parameter.defined())
    parameter.unsafeGetTensorImpl()->bump_version();
}

void HostWeight::take_memory() {
  const c10::DeviceGuard guard(contents_.device());
  c10::StorageImpl* const storage = contents_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(contents_.device_type())->allocate(bytes_));
  storage->set_nbytes(bytes_);
  is_here_ = true;
  version_ = version();
  const at::Tensor parameter = parameter_.lock();
  if (!parameter.defined()) return;
  set_storage(parameter, contents_);
  hooks::announce_parameter(parameter);
}

void HostWeight::fetch() {
  if (is_here_) return;
  take_memory();
  if (!link_) return;
  fetched_ = link_->copy_to_device(contents_.mutable_data(), host_.const_data_ptr(), bytes_, written_);
  is_fetched_ = true;
  if (const at::Tensor parameter = parameter_.lock(); parameter.defined()) set_storage(parameter, away_);
}

void HostWeight::use() {
  fetch();
  if (!std::exchange(is_fetched_, false)) return;
  fetched_->wait();
  if (const at::Tensor parameter = parameter_.lock(); parameter.defined()) set_storage(parameter, contents_);
}

void HostWeight::send() {
  if (!link_) return;
  if (const at::Tensor parameter = parameter_.lock(); parameter.defined()) before_write_(parameter);
  written_ = link_->copy_to_host(contents_.data(), host_.mutable_data_ptr(), bytes_, nullptr);
  written_->wait();
}

void HostWeight::drop() {
  if (!is_here_) return;
  if (std::exchange(is_fetched_, false))
    fetched_->wait();  // nobody used it
  else if (version() != version_)
    send();
  c10::StorageImpl* const storage = contents_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, contents_.device()));
  storage->set_nbytes(0);
  if (const at::Tensor parameter = parameter_.lock(); parameter.defined()) set_storage(parameter, away_);
  is_here_ = false;
}

void HostWeight::write(const std::function<void()>& fill) {
  drop();
  take_memory();
  fill();
  send();
  version_ = version();
  drop();
}

void HostWeight::finish() {
  if (fetched_) fetched_->finish();
  if (written_) written_->finish();
}

void HostWeight::bring_back() noexcept try {
  if (parameter_.lock().defined()) use();
} catch (const std::exception& error) {
  TORCH_WARN("a weight stays on the host: ", error.what());
}

}  // namespace snug::optim
