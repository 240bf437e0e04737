// Where the values of one device go: its arena on the host, and the link to it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "snug/base/export.h"
#include "snug/host/arena.h"
#include "snug/host/link.h"

namespace snug::host {

SNUG_API std::uint64_t default_budget_bytes();  // four fifths of what the host has free

struct StoreOptions {
  std::uint64_t budget_bytes = 0;   // 0: default_budget_bytes()
  std::uint64_t reserve_bytes = 0;  // made at once, so that no step has to
};

class SNUG_API Store {
 public:
  explicit Store(c10::Device device, const StoreOptions& options = {});
  Store(std::shared_ptr<Link> link, const StoreOptions& options);  // over a link of the caller's own
  // For whoever brings none: one per device, shared by the whole process.
  static std::shared_ptr<Store> shared(c10::Device device);

  c10::Device device() const { return link_->device(); }  // with its index
  Arena& arena() { return arena_; }
  Link& link() { return *link_; }

 private:
  Arena arena_;
  std::shared_ptr<Link> link_;
};

}  // namespace snug::host
