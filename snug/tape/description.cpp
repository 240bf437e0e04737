#include "snug/tape/description.h"

#include <utility>

namespace snug::tape {

Description::Description(const std::string& region, std::shared_ptr<Figures> figures, bool is_sketch)
    : figures_(std::move(figures)), is_sketch_(is_sketch) {
  tape_.region = region;
  {
    std::lock_guard lock(figures_->mutex);
    number_ = figures_->begun++;
  }
  if (SketchListener* const told = listener()) told->on_begin(number_);
}

Description::~Description() {
  std::lock_guard lock(figures_->mutex);
  figures_->tapes.emplace(number_, std::move(tape_));
}

// A graph may outlive its Recording, and be older than the sketch.
SketchListener* Description::listener() const {
  return is_sketch_ ? figures_->sketch.load() : nullptr;
}

Fate Description::fate_of(const Value& value) const {
  return is_sketch_ && !value.is_undefined ? Fate::Keep : value.fate;
}

void Description::add(Value& value, const at::Tensor& tensor, bool is_parameter) {
  value.origin.number = static_cast<std::uint32_t>(tape_.values.size());
  tape_.values.push_back({.output = value.origin.output,
                          .bytes = tensor.storage().nbytes(),
                          .fate = fate_of(value),
                          .parameter = is_parameter});
  if (SketchListener* const told = listener()) told->on_value(number_, value.origin.number, tensor);
}

void Description::add(trace::TapeOperation operation) {
  const auto number = static_cast<std::uint32_t>(tape_.operations.size());
  for (const trace::ValueIndex result : operation.results) tape_.values[result].operation = number;
  for (const auto& write : operation.writes) tape_.values[write.after].operation = number;
  tape_.operations.push_back(std::move(operation));
  if (SketchListener* const told = listener()) told->on_operation(number_, number);
}

void Description::set_fate(const Value& value) {
  tape_.values[value.origin.number].fate = fate_of(value);
}

void Description::set_kept(const Value& value) {
  Fate& fate = tape_.values[value.origin.number].fate;
  if (fate == Fate::Recompute) fate = Fate::Keep;
  if (value.origin.operation < tape_.operations.size())
    tape_.operations[value.origin.operation].replayable = false;
}

void Description::set_held(const Value& value) {
  trace::TapeValue& described = tape_.values[value.origin.number];
  described.held = !described.parameter;
}

void Description::end_forward() {
  if (SketchListener* const told = listener()) told->on_end(number_);
}

std::size_t Description::add_save(const Value& value) {
  if (SketchListener* const told = listener()) told->on_save(number_);
  tape_.saves.push_back(value.origin.number);
  return tape_.saves.size() - 1;
}

void Description::move_save(std::size_t save, const Value& value) {
  tape_.saves[save] = value.origin.number;
}

void Description::release_save(std::size_t save) {
  if (SketchListener* const told = listener()) told->on_release(number_, save);
}

Description::Unpacking::Unpacking(Description* description, std::size_t save)
    : listener_(description ? description->listener() : nullptr) {
  if (listener_) listener_->before_unpack(description->number_, save);
}

Description::Unpacking::~Unpacking() {
  if (listener_) listener_->after_unpack();
}

void Description::add_unpack(const Value& value) {
  const auto node = torch::autograd::get_current_node();
  if (tape_.unpacks.empty() || node.get() != last_node_) tape_.unpacks.emplace_back();
  last_node_ = node.get();
  tape_.unpacks.back().push_back(value.origin.number);
}

}  // namespace snug::tape
