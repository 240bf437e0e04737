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

// The stretch in which an unpack makes what it gives.
class Unpacking {
 public:
  Unpacking(SketchListener* listener, std::uint64_t tape, std::size_t save) : listener_(listener) {
    if (listener_) listener_->before_unpack(tape, save);
  }
  ~Unpacking() {
    if (listener_) listener_->after_unpack();
  }
  Unpacking(const Unpacking&) = delete;  // it is a stretch of time
  Unpacking& operator=(const Unpacking&) = delete;

 private:
  SketchListener* listener_;
};

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
  std::lock_guard lock(tape_->mutex_);
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
  if (tape_->proof_) {
    if (tape_->proof_->goes_on(value->origin.serial + 1)) {
      tape_->distrust_all();
      value = tape_->value_of(tensor);
      tape_->pin(value, tensor);
    }
    tape_->proof_->read(value, tensor.storage());
  }
  const bool is_first = value->saves == 0;
  value_ = SavedTensorsValue(std::move(value));
  geometry_ = Geometry(tensor);
  tape_->saved_.insert(this);
  if (is_first && value_->fate == Fate::Recompute) {
    ++tape_->totals_.dropped_values;
    tape_->totals_.dropped_bytes += tensor.storage().nbytes();
  }
  if (auto* description = tape_->description()) {
    place_ = description->saves.size();
    description->saves.push_back(value_->origin.number);
  }
}

at::Tensor SavedValue::call_unpack_hook() {
  if (!is_plain_) return plain_.call_unpack_hook();
  TORCH_CHECK(
      counter_.current_version() == version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: [",
      geometry_.sizes, "] is at version ", counter_.current_version(), "; expected version ", version_,
      " instead");
  Quiet work_of_our_own;
  std::lock_guard lock(tape_->mutex_);
  if (tape_->proof_) tape_->proof_->before_unpack(tape_->replay_.is_in_backward());
  TORCH_CHECK(tape_->failure_.empty(), tape_->failure_);
  if (tape_->proof_) tape_->proof_->look_at_given();
  tape_->replay_.begin_backward();
  if (tape_->replay_.is_first_unpack()) tape_->look_back();
  arm(tape_->replay_);
  const Unpacking unpacking(tape_->listener(), tape_->number_, place_);
  at::Tensor tensor = tape_->options_.stand_ins ? stand_in() : contents();
  disarm(tape_->replay_);
  tape_->note_unpack(*value_, tensor);
  return tensor;
}

at::Tensor SavedValue::contents() {
  Value& value = *value_;
  if (value.given()) return on_counted(value.given(), value.given_counter());
  const bool is_kept = value.is_kept();
  const c10::Storage storage = is_kept ? value.storage() : tape_->replay_.contents(value);
  // This saved tensor has its own counter, checked already: that of the value may be another's.
  const c10::VariableVersion counter = is_kept ? counter_ : value.counter_in_backward();
  if (tape_->proof_ && tape_->proof_->may_be_written(value) && is_of_someones_own()) {
    tape_->proof_->gave(value, storage);
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
  std::lock_guard lock(tape_->mutex_);
  if (!value_) return;
  tape_->saved_.erase(this);
  if (SketchListener* const told = tape_->listener()) told->on_release(tape_->number_, place_);
  disarm(tape_->replay_);
  value_ = {};
}

void SavedValue::move_to(ValuePtr value) {
  disarm(tape_->replay_);
  value_ = SavedTensorsValue(std::move(value));
  if (auto* description = tape_->description()) description->saves[place_] = value_->origin.number;
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
