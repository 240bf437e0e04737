#include "snug/trace/closure.h"

#include <algorithm>
#include <utility>

#include "snug/base/error.h"

namespace snug::trace {

// Chains of operations may be long, so nothing here recurses.

void ClosureWalk::arm(ClosureValue& first) {
  std::vector<ClosureValue*> todo{&first};
  while (!todo.empty()) {
    ClosureValue& value = *todo.back();
    todo.pop_back();
    if (value.uses++ > 0 || value.here || !value.producer || value.producer->armed) continue;
    value.producer->armed = true;
    todo.insert(todo.end(), value.producer->reads.begin(), value.producer->reads.end());
  }
}

void ClosureWalk::require(ClosureValue& wanted) {
  std::vector<ClosureValue*> todo{&wanted};
  while (!todo.empty()) {
    ClosureValue& value = *todo.back();
    if (!value.here) {
      ensure(value.producer != nullptr, "a value has neither contents nor an operation that makes it");
      const std::size_t before = todo.size();
      for (ClosureValue* read : value.producer->reads)
        if (!read->here) todo.push_back(read);
      if (todo.size() > before) continue;
      ClosureOperation& operation = *value.producer;
      run(operation);
      ensure(value.here, "an operation ran again and did not make its result");
      std::vector<ClosureValue*> released;
      disarm(operation, released);
      for (ClosureValue* read : released) release(*read);
    }
    todo.pop_back();
  }
}

void ClosureWalk::release(ClosureValue& first) {
  std::vector<ClosureValue*> todo{&first};
  while (!todo.empty()) {
    ClosureValue& value = *todo.back();
    todo.pop_back();
    if (--value.uses > 0) continue;
    last_use(value);
    if (value.producer) disarm(*value.producer, todo);
  }
}

// The operation has run, or nobody is left who would need it: what it reads has one use less.
void ClosureWalk::disarm(ClosureOperation& operation, std::vector<ClosureValue*>& released) {
  if (!operation.armed) return;
  for (const ClosureValue* result : operation.results)
    if (result && result->uses > 0 && !result->here) return;
  operation.armed = false;
  released.insert(released.end(), operation.reads.begin(), operation.reads.end());
}

ClosureBytes::ClosureBytes(const RegionTape& tape, std::span<const Fate> fates)
    : tape_(tape),
      operations_(tape.operations.size()),
      values_(tape.values.size()),
      offloaded_(tape.values.size()),
      back_(tape.values.size()),
      armed_(tape.values.size()) {
  check(fates.size() == values_.size(), "a tape of ", values_.size(), " values needs as many fates, got ",
        fates.size());
  for (std::size_t i = 0; i < operations_.size(); ++i) connect(i, fates);
  for (ClosureValue& value : values_) value.here = !value.producer;
  for (const ValueIndex saved : tape_.saves) {
    arm(values_[saved]);
    ++armed_[saved];
  }
  for (ValueIndex i = 0; i < values_.size(); ++i) {
    offloaded_[i] = fates[i] == Fate::Offload && !tape_.values[i].parameter && values_[i].uses > 0;
    bring_back(i);
  }
}

void ClosureBytes::bring_back(ValueIndex value) {
  if (!offloaded_[value] || back_[value]) return;
  back_[value] = true;
  live_ += bytes(value);
  peak_ = std::max(peak_, live_);
  on_fetch(value);
}

void ClosureBytes::free(ValueIndex value) {
  live_ -= bytes(value);
  on_free(value);
}

void ClosureBytes::connect(std::size_t i, std::span<const Fate> fates) {
  const TapeOperation& recorded = tape_.operations[i];
  ClosureOperation& operation = operations_[i];
  for (const ValueIndex read : recorded.reads) operation.reads.push_back(&values_[read]);
  for (const auto& write : recorded.writes) operation.reads.push_back(&values_[write.before]);
  if (!recorded.replayable) return;
  for (const auto& write : recorded.writes)  // only what can be recomputed is written again
    if (!values_[write.before].producer) return;
  const auto can_make = [&](ValueIndex made) {
    if (fates[made] != Fate::Recompute) return;
    values_[made].producer = &operation;
    operation.results.push_back(&values_[made]);
  };
  for (const ValueIndex made : recorded.results) can_make(made);
  for (const auto& write : recorded.writes) can_make(write.after);
}

void ClosureBytes::unpack(ValueIndex wanted) {
  if (armed_[wanted]-- <= 0) arm(values_[wanted]);  // asked for again after its last use
  require(values_[wanted]);
  bring_back(wanted);
  if ((is_recomputed(wanted) || is_offloaded(wanted)) && !is_held(wanted)) held_by_node_.push_back(wanted);
  release(values_[wanted]);
}

void ClosureBytes::end_node() {
  for (const ValueIndex value : std::exchange(held_by_node_, {}))
    if (!is_there(value)) free(value);
}

std::uint64_t ClosureBytes::take_peak() {
  return std::exchange(peak_, live_);
}

bool ClosureBytes::is_held(ValueIndex value) const {
  return std::ranges::find(held_by_node_, value) != held_by_node_.end();
}

// As replay does it: a written argument is copied unless nobody else needs it, then the operation makes all
// its results at once, and those that nobody asked for go.
void ClosureBytes::run(ClosureOperation& operation) {
  const auto number = static_cast<std::uint32_t>(&operation - operations_.data());
  const TapeOperation& recorded = tape_.operations[number];
  ran_.push_back(number);
  for (const ValueIndex read : recorded.reads) bring_back(read);
  std::uint64_t copied = 0, made = 0, unwanted = 0;
  const auto make = [&](ValueIndex value) {
    const bool is_wanted = is_recomputed(value) && values_[value].uses > 0 && !values_[value].here;
    if (is_wanted) values_[value].here = true;
    if (!is_wanted) unwanted += bytes(value);
    return is_wanted;
  };
  for (const auto& write : recorded.writes) {
    const bool takes_over =
        is_recomputed(write.before) && values_[write.before].uses == 1 && !is_held(write.before);
    if (takes_over) {
      values_[write.before].here = false;
      live_ -= bytes(write.before);
    }
    copied += bytes(write.after);
    const bool is_wanted = make(write.after);
    takes_over ? on_move(write.before, write.after, is_wanted) : on_copy(write.after, is_wanted);
  }
  wanted_.clear();
  for (const ValueIndex value : recorded.results) {
    made += bytes(value);
    if (make(value)) wanted_.push_back(value);
  }
  on_run(number, wanted_);
  peak_ = std::max(peak_, live_ + copied + std::max(made, recorded.peak_bytes));
  live_ += copied + made - unwanted;
}

void ClosureBytes::last_use(ClosureValue& value) {
  const auto number = static_cast<ValueIndex>(&value - values_.data());
  if (!(is_recomputed(number) || is_offloaded(number)) || !is_there(number)) return;
  if (is_recomputed(number)) value.here = false;
  back_[number] = false;
  if (!is_held(number)) free(number);
}

std::vector<bool> kept_values(const RegionTape& tape, const ClosureBytes& walk) {
  std::vector<bool> kept(tape.values.size()), needed(tape.values.size());
  std::vector<ValueIndex> todo(tape.saves.begin(), tape.saves.end());
  while (!todo.empty()) {
    const ValueIndex value = todo.back();
    todo.pop_back();
    if (needed[value]) continue;
    needed[value] = true;
    if (!walk.is_recomputed(value)) {
      kept[value] = !tape.values[value].parameter && !walk.is_offloaded(value);
      continue;
    }
    const TapeOperation& producer = tape.operations[tape.values[value].operation];
    todo.insert(todo.end(), producer.reads.begin(), producer.reads.end());
    for (const auto& write : producer.writes) todo.push_back(write.before);
  }
  return kept;
}

Closure closure(const RegionTape& tape, std::span<const Fate> fates) {
  ClosureBytes walk(tape, fates);
  Closure result;
  for (const auto& node : tape.unpacks) {
    for (const ValueIndex wanted : node) walk.unpack(wanted);
    walk.end_node();
  }
  result.operations = walk.operations();
  result.peak_bytes = walk.take_peak();
  const std::vector<bool> kept = kept_values(tape, walk);
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i]) result.kept_bytes += tape.values[i].bytes;
  return result;
}

}  // namespace snug::trace
