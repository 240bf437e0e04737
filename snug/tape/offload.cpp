#include "snug/tape/offload.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "snug/hooks/saved_tensors.h"
#include "snug/tape/streams.h"

namespace snug::tape {

std::string Offload::send(const ValuePtr& sent) try {
  Value& value = *sent;
  if (value.is_changed()) return "written after it was saved";
  if (!value.device.is_meta()) {
    host::Store& store = this->store(value.device);
    if (store.device() != value.device) return "on another device";
    value.slot = store.arena().take(value.span.size());
    if (value.kept_stream) wait_for(*value.kept_stream, value.kept);
    value.sent = store.link().to_host(value.span.in(value.kept), value.slot, value.span.size());
  }
  value.is_offloaded = true;
  sent_.push_back(sent);
  return "";
} catch (const std::exception& error) {  // a region's end may not throw
  sent->slot = {};
  return error.what();
}

void Offload::leave() {
  for (const std::weak_ptr<Value>& weak : sent_) {
    const ValuePtr value = weak.lock();
    if (!value || !value->is_offloaded || !value->kept || value->is_changed()) continue;
    value->leaves();
  }
}

void Offload::bring_back() {
  for (auto weak = sent_.rbegin(); weak != sent_.rend(); ++weak)
    if (const ValuePtr value = weak->lock(); value && value->is_offloaded && value->uses > 0)
      bring_back(*value);
}

void Offload::bring_back(Value& value) {
  if (value.memo || (value.kept && value.is_changed())) return;
  value.memo = value.kept ? std::exchange(value.kept, {}) : value.still_alive();
  if (!value.memo) {
    const auto bytes = static_cast<std::int64_t>(value.bytes);
    const at::Tensor memory = at::empty({bytes}, at::TensorOptions(at::kByte).device(value.device));
    hooks::tell_saved(memory);
    value.memo = memory.storage();
    if (value.slot)
      value.fetched =
          store(value.device).link().to_device(value.span.in(value.memo), value.slot, value.span.size());
  }
  value.memo_counter = c10::VariableVersion(0);
  value.memo_stream = current_stream(value.device);
  value.here = true;
}

host::Store& Offload::store(c10::Device device) {
  if (!store_ || (is_shared_ && store_->device() != device)) {
    store_ = host::Store::shared(device);
    is_shared_ = true;
  }
  return *store_;
}

}  // namespace snug::tape
