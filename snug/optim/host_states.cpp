#include "snug/optim/host_states.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/host/host_tensor.h"
#include "snug/optim/streams.h"

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
  for (const auto& piece : group) bytes += aligned(count * piece.tensor.element_size());
  return bytes;
}

std::byte* host_data(const at::Tensor& tensor, std::int64_t begin) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) + begin * tensor.element_size();
}

}  // namespace

HostStates::HostStates(c10::Device device, std::shared_ptr<host::Store> store)
    : device_(device), store_(std::move(store)) {
  host::check_store(store_, device_);
  if (!store_) return;
  std::size_t number = kFirstOfBuffers;
  for (Buffer& buffer : buffers_) buffer.stream = store_->link().stream_beside(number++);
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
  return store_ ? store_->link().stream_beside(kOfUpdates) : std::nullopt;
}

at::Tensor HostStates::zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor zeros = host::host_zeros(store_, sizes, dtype);
  bytes_ += host::host_bytes(zeros);
  return zeros;
}

void HostStates::reserve_buffers(const std::vector<Group>& groups) {
  for (const Group& group : groups)
    for (const Piece& piece : group) streamed_ += host::host_bytes(piece.tensor);
  std::int64_t bytes = 0;
  for (Group group : groups) {
    bytes = std::max(bytes, buffer_bytes(group, slice_elements(group)));
    std::erase_if(group, [](const Piece& piece) { return !piece.is_written; });
    if (!group.empty()) bytes = std::max(bytes, buffer_bytes(group, slice_elements(group)));
  }
  for (Buffer& buffer : buffers_)
    buffer.memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

// Elements of a group that a buffer takes. All buffers together are a small part of what streams.
std::int64_t HostStates::slice_elements(const Group& group) const {
  constexpr std::int64_t kLeastBytes = 64 * 1024, kSmallPart = 8;
  std::int64_t bytes = 0;
  for (const Piece& piece : group) bytes += piece.tensor.element_size();
  const std::int64_t most = std::clamp(static_cast<std::int64_t>(streamed_ / (kBuffers * kSmallPart)),
                                       kLeastBytes, kMostBufferBytes);
  return std::min(most / bytes / kAlignment * kAlignment, group.front().tensor.numel());
}

std::vector<at::Tensor> HostStates::carve(const Buffer& buffer, const Group& group,
                                          std::int64_t count) const {
  std::vector<at::Tensor> tensors;
  std::int64_t offset = 0;
  for (const Piece& piece : group) {
    const std::int64_t bytes = count * piece.tensor.element_size();
    tensors.push_back(buffer.memory.narrow(0, offset, bytes).view(piece.tensor.scalar_type()));
    offset += aligned(bytes);
  }
  return tensors;
}

void HostStates::fetch(Buffer& buffer, const Group& group, const Slice& slice) {
  if (!store_) return;
  buffer.fetched.clear();
  host::wait_for_all(std::exchange(buffer.sent, {}));
  for (std::size_t i = 0; i < group.size(); ++i)
    buffer.fetched.push_back(store_->link().copy_to_device(slice.tensors[i].mutable_data_ptr(),
                                                           host_data(group[i].tensor, slice.begin),
                                                           slice.tensors[i].nbytes(), nullptr));
}

void HostStates::send(Buffer& buffer, const Group& group, const Slice& slice) {
  if (!store_) return;
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (!group[i].is_written) continue;
    buffer.sent.push_back(store_->link().copy_to_host(slice.tensors[i].const_data_ptr(),
                                                      host_data(group[i].tensor, slice.begin),
                                                      slice.tensors[i].nbytes(), nullptr));
    if (group[i].written) *group[i].written = buffer.sent.back();
  }
}

HostStates::Walk::Walk(HostStates& states, std::vector<Group> groups, std::function<void(const Slice&)> use)
    : states_(states), groups_(std::move(groups)), use_(std::move(use)) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::int64_t all = groups_[i].front().tensor.numel(), most = states_.slice_elements(groups_[i]);
    for (std::int64_t begin = 0; begin < all; begin += most)
      slices_.push_back({i, begin, std::min(most, all - begin), {}});
  }
  for (const Buffer& buffer : states_.buffers_)
    if (buffer.stream) run_after(current_stream(states_.device_), *buffer.stream);
}

void HostStates::begin_walks() {
  for (Buffer& buffer : buffers_)
    for (const host::CopyPtr& copy : buffer.sent) copy->wait();
}

void HostStates::Walk::fetch_next() {
  Slice& slice = slices_[fetched_];
  Buffer& to = buffer(fetched_);
  const c10::OptionalStreamGuard guard(to.stream);
  slice.tensors = states_.carve(to, groups_[slice.group], slice.count);
  states_.fetch(to, groups_[slice.group], slice);
  ++fetched_;
}

// If `use` throws, the next call is for the same slice.
void HostStates::Walk::use_next() {
  Slice& slice = slices_[used_];
  Buffer& in = buffer(used_);
  const c10::OptionalStreamGuard guard(in.stream);
  for (const host::CopyPtr& copy : in.fetched) copy->wait();
  use_(slice);
  states_.send(in, groups_[slice.group], slice);
  in.fetched.clear();
  slice.tensors.clear();
  ++used_;
}

void HostStates::Walk::join() const {
  for (const Buffer& buffer : states_.buffers_)
    if (buffer.stream) run_after(*buffer.stream, current_stream(states_.device_));
}

// Whoever is told of an error may free what the slices before it still use.
void HostStates::Walk::go_to(std::size_t group) try {
  constexpr std::size_t kAhead = kBuffers - 1;
  while (used_ < slices_.size() && slices_[used_].group < group) {
    while (fetched_ < slices_.size() && fetched_ <= used_ + kAhead) fetch_next();
    use_next();
  }
  join();
} catch (...) {
  join();
  throw;
}

void HostStates::finish() const {
  std::vector<host::CopyPtr> all;
  for (const Buffer& buffer : buffers_)
    for (const auto* copies : {&buffer.fetched, &buffer.sent})
      all.insert(all.end(), copies->begin(), copies->end());
  host::finish_all(all);
}

}  // namespace snug::optim
