#include "snug/tape/saved_value.h"

#include <ATen/ops/empty.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>

#include <typeindex>
#include <unordered_map>
#include <utility>

#include "snug/tape/quiet.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

// The node that asks: none that torch generates, and not ours.
bool is_of_someones_own() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return false;
  thread_local std::unordered_map<std::type_index, bool> known;
  const auto [entry, is_new] = known.try_emplace(typeid(*node));
  if (is_new) {
    const std::string type = c10::demangle(typeid(*node).name());
    const bool is_torchs = type.starts_with("torch::autograd::") &&
                           type.find("CppNode<") == std::string::npos && !type.ends_with("PyNode");
    entry->second = !is_torchs && type.find("CppNode<snug::ops::") == std::string::npos;
  }
  return entry->second;
}

}  // namespace

void SavedValue::call_pack_hook(const at::Tensor& tensor) {
  Quiet work_of_our_own;
  std::lock_guard lock(tape_->mutex());
  if (!is_plain(tensor)) {
    plain_.call_pack_hook(tensor);
    is_plain_ = false;
    return;
  }
  is_plain_ = true;
  counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  version_ = counter_.current_version();
  ValuePtr value = tape_->value_of(tensor);
  tape_->pin(value, tensor);  // may throw
  if (Proof* const proof = tape_->proof()) {
    if (proof->goes_on(value->origin.serial + 1)) {
      tape_->distrust_all();
      value = tape_->value_of(tensor);
      tape_->pin(value, tensor);
    }
    proof->read(value, tensor.storage());
  }
  const bool is_first = value->saves == 0;
  value_ = SavedTensorsValue(std::move(value));
  geometry_ = Geometry(tensor);
  tape_->saved().insert(this);
  if (is_first && value_->fate == Fate::Recompute) {
    ++tape_->totals().dropped_values;
    tape_->totals().dropped_bytes += tensor.storage().nbytes();
  }
  if (tape_->description()) place_ = tape_->description()->add_save(*value_);
}

at::Tensor SavedValue::call_unpack_hook() {
  if (!is_plain_) return plain_.call_unpack_hook();
  TORCH_CHECK(
      counter_.current_version() == version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: [",
      geometry_.sizes, "] is at version ", counter_.current_version(), "; expected version ", version_,
      " instead");
  Quiet work_of_our_own;
  std::lock_guard lock(tape_->mutex());
  const Description::Unpacking unpacking(tape_->description(), place_);
  tape_->before_unpack();
  arm(tape_->replay());
  at::Tensor tensor = tape_->options().stand_ins ? stand_in() : contents();
  disarm(tape_->replay());
  tape_->after_unpack(*value_, tensor);
  return tensor;
}

at::Tensor SavedValue::contents() {
  Value& value = *value_;
  if (value.given()) return on_counted(value.given(), value.given_counter());
  const bool is_kept = value.is_kept();
  const c10::Storage storage = is_kept ? value.storage() : tape_->replay().contents(value);
  // This saved tensor has its own counter, checked already: that of the value may be another's.
  const c10::VariableVersion counter = is_kept ? counter_ : value.counter_in_backward();
  Proof* const proof = tape_->proof();
  if (proof && proof->may_be_written(value) && is_of_someones_own()) {
    proof->gave(value, storage);
    const bool is_read_again = value.uses > value.armed_saves;
    if (is_read_again) value.give(counter);
  }
  return on_counted(storage, counter);
}

at::Tensor SavedValue::on_counted(const c10::Storage& storage, const c10::VariableVersion& counter) const {
  at::Tensor tensor = geometry_.on(storage);
  tensor.unsafeGetTensorImpl()->set_version_counter(counter);
  return tensor;
}

at::Tensor SavedValue::stand_in() {
  const auto bytes = static_cast<std::int64_t>(value_->bytes);
  return geometry_.on(at::empty({bytes}, at::TensorOptions(at::kByte).device(c10::kMeta)).storage());
}

SavedValue::~SavedValue() {
  std::lock_guard lock(tape_->mutex());
  if (!value_) return;
  tape_->saved().erase(this);
  if (tape_->description()) tape_->description()->release_save(place_);
  disarm(tape_->replay());
  value_ = {};
}

void SavedValue::move_to(ValuePtr value) {
  disarm(tape_->replay());
  value_ = SavedTensorsValue(std::move(value));
  if (tape_->description()) tape_->description()->move_save(place_, *value_);
}

void SavedValue::arm(Replay& replay) {
  if (armed_) return;
  armed_ = true;
  ++value_->armed_saves;
  replay.arm(*value_);
}

void SavedValue::disarm(Replay& replay) {
  if (!armed_) return;
  armed_ = false;
  --value_->armed_saves;
  replay.release(*value_);
}

}  // namespace snug::tape
