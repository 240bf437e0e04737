// Where the bytes of tensors come from, in composable pieces: limit(track(default)). Each wraps another and
// works alone.
//
//   auto tracked = std::make_shared<TrackingAllocator>(default_resource(at::kCPU), observer);
//   auto limited = std::make_shared<LimitingAllocator>(tracked, 2_GiB);
//   ResourceScope scope(at::kCPU, limited);  // CPU tensors made from here on come from it
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "snug/base/export.h"

namespace snug::memory {

// Thread-safe. Sizes are what the caller asked for, never 0; deallocate gets the size given to allocate.
class SNUG_API Resource {
 public:
  virtual ~Resource() = default;
  virtual void* allocate(std::size_t bytes) = 0;  // throws c10::OutOfMemoryError
  virtual void deallocate(void* address, std::size_t bytes) noexcept = 0;
};

// CPU: torch's own CPU allocator. Meta: addresses that are never used twice, and no memory.
SNUG_API std::shared_ptr<Resource> default_resource(c10::DeviceType device);

// What new allocations of the device come from at the moment.
SNUG_API std::shared_ptr<Resource> current_resource(c10::DeviceType device);

// Makes `resource` the source of every new allocation of a device type (CPU or Meta), on all threads, until
// the scope ends or another begins. What was allocated before or outlives the scope is freed where it came
// from, so `resource` is shared. Scopes and trackers end in any order: the last one that is left counts.
class SNUG_API ResourceScope {
 public:
  ResourceScope(c10::DeviceType device, std::shared_ptr<Resource> resource);
  ~ResourceScope();
  // Neither copied nor moved: it is a place in a list.
  ResourceScope(const ResourceScope&) = delete;
  ResourceScope& operator=(const ResourceScope&) = delete;

 private:
  c10::DeviceType device_;
  std::uint64_t place_;
};

}  // namespace snug::memory
