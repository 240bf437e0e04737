// Which value each storage holds at the moment, while a region's forward runs. Internal to tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <unordered_map>

#include "snug/tape/value.h"

namespace snug::tape {

class ValueTable {
 public:
  bool knows(const at::Tensor& tensor) const { return entries_.contains(key(tensor)); }
  ValuePtr find(const at::Tensor& tensor);  // null if unknown, or changed by a write that was not seen
  ValuePtr current(const at::Tensor& tensor) const;  // whatever was written since
  void bind(const at::Tensor& tensor, ValuePtr value);
  void forget(const at::Tensor& tensor) { entries_.erase(key(tensor)); }
  void clear() { entries_.clear(); }

 private:
  static constexpr std::size_t kSweepAtLeast = 32;  // values that nobody needs hold what they were made from
  static c10::StorageImpl* key(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }
  void sweep();

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address is not used for another
    ValuePtr value;
  };
  std::unordered_map<c10::StorageImpl*, Entry> entries_;
  std::size_t sweep_at_ = kSweepAtLeast;
};

}  // namespace snug::tape
