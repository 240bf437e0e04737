#include "snug/train/background_save.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

namespace snug::train {

namespace {

// In memory of the process, not of torch: it counts against no budget of a device, be it the CPU.
at::Tensor plain_memory(const at::Tensor& like) {
  const std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(like.nbytes());
  return at::from_blob(
      memory.get(), like.sizes(), [memory](void*) {}, at::TensorOptions(like.scalar_type()));
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  try {
    finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a training state was not saved: ", error.what());
  }
}

io::TensorSource BackgroundSave::copied(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor copy = plain_memory(tensor).copy_(tensor.detach());
  spare_bytes_ -= std::min<std::uint64_t>(spare_bytes_, copy.nbytes());
  return add(name, {.tensor = copy});
}

io::TensorSource BackgroundSave::in_place(const std::string& name, const at::Tensor& tensor,
                                          std::size_t parameter) {
  return add(name, {.tensor = tensor, .parameter = parameter});
}

io::TensorSource BackgroundSave::add(const std::string& name, Item item) {
  io::TensorSource source = io::source_of(name, item.tensor);
  const std::size_t number = items_.size();
  items_.push_back(std::move(item));
  source.make = [this, number] { return read(number); };
  source.on_written = [this, number] {
    const std::scoped_lock lock(mutex_);
    let_go(items_[number]);
  };
  return source;
}

void BackgroundSave::begin(std::function<void()> write) {
  written_ = std::async(std::launch::async, [this, write = std::move(write)] {
    try {
      write();
    } catch (...) {
      end();
      throw;
    }
    end();
  });
}

at::Tensor BackgroundSave::read(std::size_t number) {
  const std::scoped_lock lock(mutex_);
  items_[number].state = State::IsRead;
  return items_[number].tensor;
}

void BackgroundSave::let_go(Item& item) {
  if (!item.parameter && item.tensor.defined()) spare_bytes_ += item.tensor.nbytes();
  item.tensor.reset();
  item.state = State::Done;
  done_.notify_all();
}

void BackgroundSave::end() {
  const std::scoped_lock lock(mutex_);
  for (Item& item : items_) let_go(item);
}

void BackgroundSave::before_write(std::size_t parameter) {
  std::unique_lock lock(mutex_);
  for (Item& item : items_) {
    if (item.parameter != parameter || item.state == State::Done) continue;
    if (item.state == State::Waits && item.tensor.nbytes() <= spare_bytes_) {
      const at::Tensor copy = plain_memory(item.tensor);
      std::memcpy(copy.mutable_data_ptr(), item.tensor.const_data_ptr(), copy.nbytes());
      spare_bytes_ -= copy.nbytes();
      item = {.tensor = copy};
      continue;
    }
    done_.wait(lock, [&] { return item.state == State::Done; });
  }
}

bool BackgroundSave::is_over() const {
  return !written_.valid() || written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void BackgroundSave::wait() const {
  if (written_.valid()) written_.wait();
}

void BackgroundSave::finish() {
  if (written_.valid()) written_.get();
}

}  // namespace snug::train
