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

namespace {

class BytesWalk final : public ClosureWalk {
 public:
  BytesWalk(const RegionTape& tape, std::span<const Fate> fates)
      : tape_(tape), operations_(tape.operations.size()), values_(tape.values.size()) {
    check(fates.size() == values_.size(), "a tape of ", values_.size(), " values needs as many fates, got ",
          fates.size());
    for (std::size_t i = 0; i < operations_.size(); ++i) connect(i, fates);
    for (ClosureValue& value : values_) value.here = !value.producer;
  }

  Closure walk() {
    std::vector<int> armed(values_.size());
    for (const ValueIndex saved : tape_.saves) {
      arm(values_[saved]);
      ++armed[saved];
    }
    for (const auto& node : tape_.unpacks) {
      for (const ValueIndex wanted : node) {
        if (armed[wanted]-- <= 0) arm(values_[wanted]);  // asked for again after its last use
        require(values_[wanted]);
        if (is_remade(wanted) && !is_held(wanted)) held_by_node_.push_back(wanted);
        release(values_[wanted]);
      }
      for (const ValueIndex value : std::exchange(held_by_node_, {}))
        if (!values_[value].here) live_ -= bytes(value);
    }
    count_kept();
    return std::move(result_);
  }

 private:
  void connect(std::size_t i, std::span<const Fate> fates) {
    const TapeOperation& recorded = tape_.operations[i];
    ClosureOperation& operation = operations_[i];
    for (const ValueIndex read : recorded.reads) operation.reads.push_back(&values_[read]);
    for (const auto& write : recorded.writes) operation.reads.push_back(&values_[write.before]);
    if (!recorded.replayable) return;
    for (const auto& write : recorded.writes)  // only what can be re-made is written again
      if (!values_[write.before].producer) return;
    const auto can_make = [&](ValueIndex made) {
      if (fates[made] != Fate::Recompute) return;
      values_[made].producer = &operation;
      operation.results.push_back(&values_[made]);
    };
    for (const ValueIndex made : recorded.results) can_make(made);
    for (const auto& write : recorded.writes) can_make(write.after);
  }

  bool is_remade(ValueIndex value) const { return values_[value].producer != nullptr; }
  bool is_held(ValueIndex value) const {
    return std::ranges::find(held_by_node_, value) != held_by_node_.end();
  }
  std::uint64_t bytes(ValueIndex value) const { return tape_.values[value].bytes; }

  // As replay does it: a written argument is copied unless nobody else needs it, then the operation makes all
  // its results at once, and those that nobody asked for go.
  void run(ClosureOperation& operation) override {
    const auto number = static_cast<std::uint32_t>(&operation - operations_.data());
    const TapeOperation& recorded = tape_.operations[number];
    result_.operations.push_back(number);
    std::uint64_t made = 0, unwanted = 0;
    const auto make = [&](ValueIndex value) {
      const bool wanted = is_remade(value) && values_[value].uses > 0 && !values_[value].here;
      if (wanted) values_[value].here = true;
      if (!wanted) unwanted += bytes(value);
    };
    for (const auto& write : recorded.writes) {
      const bool takes_over =
          is_remade(write.before) && values_[write.before].uses == 1 && !is_held(write.before);
      if (takes_over) {
        values_[write.before].here = false;
        live_ -= bytes(write.before);
      }
      made += bytes(write.after);
      make(write.after);
    }
    for (const ValueIndex value : recorded.results) {
      made += bytes(value);
      make(value);
    }
    live_ += made;
    result_.peak_bytes = std::max(result_.peak_bytes, live_);
    live_ -= unwanted;
  }

  void last_use(ClosureValue& value) override {
    const auto number = static_cast<ValueIndex>(&value - values_.data());
    if (!is_remade(number) || !value.here) return;
    value.here = false;
    if (!is_held(number)) live_ -= bytes(number);
  }

  // What the forward leaves behind: saved values, and what the operations to run again read.
  void count_kept() {
    std::vector<bool> kept(values_.size());
    std::vector<bool> needed(values_.size());
    std::vector<ValueIndex> todo(tape_.saves.begin(), tape_.saves.end());
    while (!todo.empty()) {
      const ValueIndex value = todo.back();
      todo.pop_back();
      if (needed[value]) continue;
      needed[value] = true;
      if (!is_remade(value)) {
        kept[value] = !tape_.values[value].parameter;
        continue;
      }
      const TapeOperation& producer = tape_.operations[tape_.values[value].operation];
      todo.insert(todo.end(), producer.reads.begin(), producer.reads.end());
      for (const auto& write : producer.writes) todo.push_back(write.before);
    }
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (kept[i]) result_.kept_bytes += tape_.values[i].bytes;
  }

  const RegionTape& tape_;
  std::vector<ClosureOperation> operations_;
  std::vector<ClosureValue> values_;
  std::vector<ValueIndex> held_by_node_;  // handed out, until the node ends
  std::uint64_t live_ = 0;
  Closure result_;
};

}  // namespace

Closure closure(const RegionTape& tape, std::span<const Fate> fates) {
  return BytesWalk(tape, fates).walk();
}

}  // namespace snug::trace
