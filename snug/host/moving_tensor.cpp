#include "snug/host/moving_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/detach.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <utility>

#include "snug/base/error.h"

namespace snug::host {

namespace {

constexpr std::int64_t kNotSent = -1;

// `link`: null on Meta, where nothing is copied.
class OnHost final : public Source {
 public:
  OnHost(at::Tensor host, Link* link) : host_(std::move(host)), link_(link) {}
  CopyPtr fetch(void* memory, const CopyPtr& after, const CopyPtr& since) override {
    if (!link_) return nullptr;
    return link_->copy_to_device(memory, host_.const_data_ptr(), host_.nbytes(), after, since);
  }
  CopyPtr send(const void* memory) override {
    return link_ ? link_->copy_to_host(memory, host_.mutable_data_ptr(), host_.nbytes(), nullptr) : nullptr;
  }
  CopyPtr mark() override { return link_ ? link_->mark() : nullptr; }

 private:
  const at::Tensor host_;
  Link* const link_;
};

void set_storage(const at::Tensor& tensor, const c10::Storage& storage) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(storage);
  impl->set_allow_tensor_metadata_change(allowed);
}

void check_memory(const at::Tensor& tensor) {
  check(fills_its_storage(tensor), "what is to leave must have its memory for itself: a tensor ",
        tensor.sizes(), " is a view");
}

}  // namespace

MovingTensor::MovingTensor(const at::Tensor& tensor, at::Tensor host, Link* link, MovingTensorOptions options)
    : tensor_(tensor),
      host_(std::move(host)),
      source_(std::make_unique<OnHost>(host_, link)),
      options_(std::move(options)),
      contents_(tensor.storage()),
      bytes_(tensor.nbytes()),
      away_(no_contents(tensor.device(), bytes_, options_.why_away)),
      version_(kNotSent) {
  check_memory(tensor);
}

MovingTensor::MovingTensor(const at::Tensor& tensor, std::unique_ptr<Source> source, bool is_sent,
                           MovingTensorOptions options)
    : tensor_(tensor),
      source_(std::move(source)),
      options_(std::move(options)),
      contents_(tensor.storage()),
      bytes_(tensor.nbytes()),
      away_(no_contents(tensor.device(), bytes_, options_.why_away)),
      version_(is_sent ? version() : kNotSent) {
  check_memory(tensor);
}

MovingTensor::~MovingTensor() {
  try {
    finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy of what waits on the host failed: ", error.what());
  }
}

std::int64_t MovingTensor::version() const {
  const at::Tensor tensor = tensor_.lock();
  return tensor.defined() ? tensor.unsafeGetTensorImpl()->version_counter().current_version() : version_;
}

void MovingTensor::note_update() {
  drop();
  if (const at::Tensor tensor = tensor_.lock(); tensor.defined())
    tensor.unsafeGetTensorImpl()->bump_version();
}

bool MovingTensor::has_alias() const {
  constexpr std::size_t kOurs = 2;  // the tensor's, and that of here
  return is_here_ && !is_fetched_ && contents_.use_count() > kOurs;
}

void MovingTensor::take_memory(bool is_filled_later) {
  const c10::DeviceGuard guard(contents_.device());
  c10::StorageImpl* const storage = contents_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(contents_.device_type())->allocate(bytes_));
  storage->set_nbytes(bytes_);
  is_here_ = true;
  is_fetched_ = is_owed_ = is_filled_later;
  version_ = version();
  const at::Tensor tensor = tensor_.lock();
  if (!tensor.defined()) return;
  set_storage(tensor, contents_);
  if (options_.came) options_.came(tensor);
}

void MovingTensor::fetch(bool is_ready) {
  if (!is_here_) {
    hide_host();
    take_memory(/*is_filled_later=*/true);
    mark_ = source_->mark();
    if (const at::Tensor tensor = tensor_.lock(); tensor.defined()) set_storage(tensor, away_);
  }
  if (!is_owed_ || !is_ready) return;
  fetched_ = source_->fetch(contents_.mutable_data(), written_, mark_);
  is_owed_ = false;
  mark_ = nullptr;
}

void MovingTensor::use() {
  fetch();
  if (!is_fetched_) return;
  wait_for_fetched();
  if (const at::Tensor tensor = tensor_.lock(); tensor.defined()) set_storage(tensor, contents_);
}

// If the copy failed the next use asks for another. The memory stays until then: a backward that is told of
// it at its end still reads there.
void MovingTensor::wait_for_fetched() {
  try {
    if (fetched_) fetched_->wait();
    is_fetched_ = false;
  } catch (...) {
    fetched_ = nullptr;
    is_owed_ = true;
    throw;
  }
}

void MovingTensor::send() {
  if (!is_here_ || is_fetched_) return;
  const at::Tensor tensor = tensor_.lock();
  if (options_.before_send && tensor.defined()) options_.before_send(tensor);
  version_ = kNotSent;  // until it is
  written_ = source_->send(contents_.data());
  is_sent_ = true;
  version_ = version();
}

void MovingTensor::drop() {
  hide_host();
  if (!is_here_) return;
  if (version() != version_) send();
  mark_ = nullptr;
  if (is_fetched_ && !std::exchange(is_owed_, false)) wait_for_fetched();  // nobody used it
  is_fetched_ = false;
  if (is_sent_) wait_for_sent();
  release();
}

// If the copy failed it is asked for again before the tensor leaves.
void MovingTensor::wait_for_sent() {
  is_sent_ = false;
  try {
    if (written_) written_->wait();
  } catch (...) {
    written_ = nullptr;
    version_ = kNotSent;
    throw;
  }
}

void MovingTensor::release() {
  c10::StorageImpl* const storage = contents_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, contents_.device()));
  storage->set_nbytes(0);
  if (const at::Tensor tensor = tensor_.lock(); tensor.defined()) set_storage(tensor, away_);
  is_here_ = false;
}

void MovingTensor::show_host() {
  drop();
  finish();
  at::Tensor tensor = tensor_.lock();
  if (!tensor.defined() || tensor.is_meta()) return;
  const at::NoGradGuard no_grad;
  hidden_ = tensor.detach();
  tensor.set_data(host_.as_strided(tensor.sizes(), tensor.strides()));
}

void MovingTensor::hide_host() {
  if (!hidden_.defined()) return;
  if (at::Tensor tensor = tensor_.lock(); tensor.defined()) tensor.set_data(hidden_);
  hidden_.reset();
}

void MovingTensor::write(const std::function<void()>& fill) {
  drop();
  take_memory(/*is_filled_later=*/false);
  fill();
  send();
  drop();
}

CopyPtr MovingTensor::fetch_into(void* memory, const CopyPtr& since) {
  return fetched_ = source_->fetch(memory, written_, since);
}

CopyPtr MovingTensor::send_from(const void* memory) {
  if (const at::Tensor tensor = tensor_.lock(); options_.before_send && tensor.defined())
    options_.before_send(tensor);
  return written_ = source_->send(memory);
}

void MovingTensor::finish() {
  finish_all(copies());
}

void MovingTensor::bring_back() noexcept try {
  if (is_used()) use();
} catch (const std::exception& error) {
  TORCH_WARN("this stays on the host, and cannot be read: ", options_.why_away, " ", error.what());
}

}  // namespace snug::host
