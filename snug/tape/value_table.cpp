#include "snug/tape/value_table.h"

#include <algorithm>

namespace snug::tape {

ValuePtr ValueTable::find(const at::Tensor& tensor) {
  const auto entry = entries_.find(key(tensor));
  if (entry == entries_.end()) return nullptr;
  const ValuePtr& value = entry->second.value;
  if (value->watch_later) value->watch(tensor);
  return value->is_changed() ? nullptr : value;
}

void ValueTable::bind(const at::Tensor& tensor, ValuePtr value) {
  const auto entry = entries_.find(key(tensor));
  if (entry != entries_.end()) {
    entry->second.value = std::move(value);
    return;
  }
  entries_.emplace(key(tensor), Entry{tensor.storage().getWeakStorageImpl(), std::move(value)});
  if (entries_.size() >= sweep_at_) sweep();
}

// Storages that are gone, and whose values nobody needs.
void ValueTable::sweep() {
  std::erase_if(entries_, [](const auto& entry) {
    return entry.second.storage.expired() && entry.second.value.use_count() == 1;
  });
  sweep_at_ = std::max<std::size_t>(256, 2 * entries_.size());
}

}  // namespace snug::tape
