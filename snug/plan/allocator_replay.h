// What torch's CUDA allocator would take from the driver for a step that was captured elsewhere.
//
//   AllocatorReplay replay({.expandable_segments = true});
//   capture(c10::kMeta, step, {.sink = &replay});
//   replay.allocator().peak_reserved_bytes();
#pragma once

#include <unordered_map>
#include <utility>

#include "snug/base/export.h"
#include "snug/plan/caching_allocator.h"
#include "snug/trace/trace.h"

namespace snug::plan {

class SNUG_API AllocatorReplay final : public trace::EventSink {
 public:
  explicit AllocatorReplay(CachingAllocatorOptions options) : allocator_(std::move(options)) {}
  // It begins with what is there; events name blocks as the layout does.
  AllocatorReplay(CachingAllocatorOptions options, const trace::AllocatorLayout& layout)
      : allocator_(std::move(options), layout,
                   [this](const trace::AllocatorLayout::Block& block, CachingAllocator::Handle handle) {
                     if (block.id != 0) live_[block.id] = handle;
                   }) {}

  void write(const trace::Event& event, const trace::NameTable& names) override;

  const CachingAllocator& allocator() const { return allocator_; }

 private:
  std::unordered_map<trace::BlockId, CachingAllocator::Handle> live_;  // before what fills it
  CachingAllocator allocator_;
};

}  // namespace snug::plan
