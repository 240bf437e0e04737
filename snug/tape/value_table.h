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
  std::vector<std::pair<c10::Storage, ValuePtr>> alive() const;  // those whose storages are
  // Lets go of storages that nobody can reach any more and whose values nobody needs: they hold what they
  // were made from. At once while there are few, now and then when there are many.
  void sweep();

 private:
  static constexpr std::size_t kFew = 256;
  static c10::StorageImpl* key(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address is not used for another
    ValuePtr value;
  };
  std::unordered_map<c10::StorageImpl*, Entry> entries_;
  std::size_t sweep_at_ = kFew;
};

}  // namespace snug::tape
