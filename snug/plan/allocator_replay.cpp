#include "snug/plan/allocator_replay.h"

#include "snug/base/error.h"

namespace snug::plan {

void AllocatorReplay::write(const trace::Event& event, const trace::NameTable&) {
  if (event.kind == trace::EventKind::Alloc) {
    const auto handle = allocator_.allocate(event.bytes);
    check(handle.has_value(), "a step that is replayed needs more than the allocator's limit");
    live_[event.block] = *handle;
  }
  if (event.kind != trace::EventKind::Free) return;
  const auto block = live_.find(event.block);
  if (block == live_.end()) return;  // from before
  allocator_.free(block->second);
  live_.erase(block);
}

}  // namespace snug::plan
