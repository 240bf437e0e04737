#include "snug/memory/resource.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "snug/base/error.h"
#include "snug/memory/device_allocator.h"

namespace snug::memory {

namespace {

// Keeps torch's own reporting to its profiler, which sits in the default allocator.
class TorchCpu final : public Resource {
 public:
  void* allocate(std::size_t bytes) override {
    try {
      return c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
    } catch (const c10::Error& error) {  // torch has a type of its own for this on devices only
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, error.what_without_backtrace());
    }
  }
  void deallocate(void* address, std::size_t) noexcept override {
    c10::GetDefaultCPUAllocator()->raw_deallocate(address);
  }
};

class FakeAddresses final : public Resource {
 public:
  void* allocate(std::size_t bytes) override {
    return reinterpret_cast<void*>(next_.fetch_add((bytes + 63) / 64 * 64));
  }
  void deallocate(void*, std::size_t) noexcept override {}

 private:
  std::atomic<std::uintptr_t> next_{64};
};

}  // namespace

std::shared_ptr<Resource> default_resource(c10::DeviceType device) {
  static const auto cpu = std::make_shared<TorchCpu>();
  static const auto meta = std::make_shared<FakeAddresses>();
  if (device == c10::kCPU) return cpu;
  if (device == c10::kMeta) return meta;
  fail("memory resources exist for cpu and meta, not for ", c10::DeviceTypeName(device, /*lower_case=*/true));
}

std::shared_ptr<Resource> current_resource(c10::DeviceType device) {
  return DeviceAllocator::of(device).current();
}

ResourceScope::ResourceScope(c10::DeviceType device, std::shared_ptr<Resource> resource)
    : device_(device), place_(DeviceAllocator::of(device).add(std::move(resource))) {}

ResourceScope::~ResourceScope() {
  DeviceAllocator::of(device_).remove(place_);
}

}  // namespace snug::memory
