#include "snug/optim/host_states.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"

namespace snug::optim {

namespace {

// Copies of a few MiB have the link's whole rate.
constexpr std::int64_t kMostBufferBytes = 32_MiB;
constexpr std::int64_t kAlignment = host::kPieceBytes;  // of each tensor in a buffer, as in the arena

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t buffer_bytes(const HostStates::Group& group, std::int64_t count) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : group) bytes += aligned(count * tensor.element_size());
  return bytes;
}

std::byte* host_data(const at::Tensor& tensor, std::int64_t begin) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) + begin * tensor.element_size();
}

}  // namespace

HostStates::HostStates(c10::Device device, std::shared_ptr<host::Store> store)
    : device_(device), store_(std::move(store)) {
  check(store_ || device_.is_meta(), "states on the host need a store of host memory: none was given");
  if (store_ && store_->device() != device_)
    fail("states of parameters on ", device_.str(), " need a store of that device, got one of ",
         store_->device().str());
}

// The memory goes with the last tensor.
HostStates::~HostStates() {
  try {
    finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy of optimizer states failed: ", error.what());
  }
}

std::optional<c10::Stream> HostStates::stream_beside() const {
  return store_ ? store_->link().stream_beside() : std::nullopt;
}

at::Tensor HostStates::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  const auto bytes = static_cast<std::uint64_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  bytes_ += static_cast<std::uint64_t>(aligned(static_cast<std::int64_t>(bytes)));
  if (device_.is_meta()) {
    at::Tensor nowhere = at::empty({0}, options.device(c10::kMeta));
    nowhere.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return nowhere;
  }
  const auto slot = std::make_shared<host::Slot>(store_->arena().take(bytes));
  slot->finish();
  std::memset(slot->data(), 0, bytes);
  return at::from_blob(
      slot->data(), sizes, [slot](void*) {}, options);
}

void HostStates::reserve_buffers(const std::vector<Group>& groups) {
  std::int64_t bytes = 0;
  for (const Group& group : groups) bytes = std::max(bytes, buffer_bytes(group, slice_elements(group)));
  for (Buffer& buffer : buffers_)
    buffer.memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

// Elements of a group that a buffer takes. All buffers together are a small part of the states.
std::int64_t HostStates::slice_elements(const Group& group) const {
  constexpr std::int64_t kLeastBytes = 64 * 1024, kSmallPart = 8;
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : group) bytes += tensor.element_size();
  const std::int64_t most =
      std::clamp(static_cast<std::int64_t>(bytes_ / (kBuffers * kSmallPart)), kLeastBytes, kMostBufferBytes);
  return std::min(most / bytes / kAlignment * kAlignment, group.front().numel());
}

HostStates::Group HostStates::carve(const Buffer& buffer, const Group& group, std::int64_t count) const {
  Group tensors;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : group) {
    const std::int64_t bytes = count * tensor.element_size();
    tensors.push_back(buffer.memory.narrow(0, offset, bytes).view(tensor.scalar_type()));
    offset += aligned(bytes);
  }
  return tensors;
}

void HostStates::fetch(Buffer& buffer, const Group& group, const Slice& slice) {
  if (!store_) return;
  for (const host::CopyPtr& copy : std::exchange(buffer.sent, {})) copy->wait();
  for (std::size_t i = 0; i < group.size(); ++i)
    buffer.fetched.push_back(store_->link().copy_to_device(slice.tensors[i].mutable_data_ptr(),
                                                           host_data(group[i], slice.begin),
                                                           slice.tensors[i].nbytes(), nullptr));
}

void HostStates::send(Buffer& buffer, const Group& group, const Slice& slice) {
  if (!store_) return;
  for (std::size_t i = 0; i < group.size(); ++i)
    buffer.sent.push_back(store_->link().copy_to_host(slice.tensors[i].const_data_ptr(),
                                                      host_data(group[i], slice.begin),
                                                      slice.tensors[i].nbytes(), nullptr));
}

HostStates::Walk::Walk(HostStates& states, std::vector<Group> groups, std::function<void(const Slice&)> use)
    : states_(states), groups_(std::move(groups)), use_(std::move(use)) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::int64_t all = groups_[i].front().numel(), most = states_.slice_elements(groups_[i]);
    for (std::int64_t begin = 0; begin < all; begin += most)
      slices_.push_back({i, begin, std::min(most, all - begin), {}});
  }
  // What the last walk sent from other buffers may be fetched first by this one.
  for (Buffer& buffer : states_.buffers_)
    for (const host::CopyPtr& copy : buffer.sent) copy->wait();
}

void HostStates::Walk::go_to(std::size_t group) {
  constexpr std::size_t kAhead = kBuffers - 1;
  for (; used_ < slices_.size() && slices_[used_].group < group; ++used_) {
    for (; fetched_ < slices_.size() && fetched_ <= used_ + kAhead; ++fetched_) {
      Slice& next = slices_[fetched_];
      next.tensors = states_.carve(buffer(fetched_), groups_[next.group], next.count);
      states_.fetch(buffer(fetched_), groups_[next.group], next);
    }
    Slice& slice = slices_[used_];
    for (const host::CopyPtr& copy : std::exchange(buffer(used_).fetched, {})) copy->wait();
    use_(slice);
    states_.send(buffer(used_), groups_[slice.group], slice);
    slice.tensors.clear();
  }
}

void HostStates::finish() const {
  for (const Buffer& buffer : buffers_) {
    for (const host::CopyPtr& copy : buffer.fetched) copy->finish();
    for (const host::CopyPtr& copy : buffer.sent) copy->finish();
  }
}

}  // namespace snug::optim
