#include "snug/tape/value_table.h"

#include <algorithm>

namespace snug::tape {

ValuePtr ValueTable::find(const at::Tensor& tensor) {
  const auto entry = entries_.find(key(tensor));
  if (entry == entries_.end()) return nullptr;
  const ValuePtr& value = entry->second.value;
  return value->is_changed() ? nullptr : value;
}

ValuePtr ValueTable::current(const at::Tensor& tensor) const {
  const auto entry = entries_.find(key(tensor));
  return entry == entries_.end() ? nullptr : entry->second.value;
}

void ValueTable::bind(const at::Tensor& tensor, ValuePtr value) {
  const auto entry = entries_.find(key(tensor));
  if (entry != entries_.end()) {
    entry->second.value = std::move(value);
    return;
  }
  entries_.emplace(key(tensor), Entry{tensor.storage().getWeakStorageImpl(), std::move(value)});
}

std::vector<std::pair<c10::Storage, ValuePtr>> ValueTable::alive() const {
  std::vector<std::pair<c10::Storage, ValuePtr>> alive;
  for (const auto& [key, entry] : entries_)
    if (auto storage = entry.storage.lock())
      alive.emplace_back(c10::Storage(std::move(storage)), entry.value);
  std::ranges::sort(alive, {}, [](const auto& entry) { return entry.second->origin.serial; });
  return alive;
}

// One may have held another, so it is done until nothing more goes.
void ValueTable::sweep() {
  if (entries_.size() >= kFew && entries_.size() < sweep_at_) return;
  const auto is_unreachable = [](const auto& entry) {
    const Value& value = *entry.second.value;
    const bool is_ours_alone = value.is_kept() && value.storage().unique();
    return !value.is_held() && (entry.second.storage.expired() || is_ours_alone);
  };
  while (std::erase_if(entries_, is_unreachable) > 0) {
  }
  sweep_at_ = 2 * entries_.size();
}

}  // namespace snug::tape
