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

  void write(const trace::Event& event, const trace::NameTable& names) override;

  const CachingAllocator& allocator() const { return allocator_; }

 private:
  CachingAllocator allocator_;
  std::unordered_map<trace::BlockId, CachingAllocator::Handle> live_;
};

}  // namespace snug::plan
