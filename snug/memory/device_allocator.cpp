#include "snug/memory/device_allocator.h"

#include <c10/core/CPUAllocator.h>

#include "snug/base/error.h"

namespace snug::memory {

DeviceAllocator::DeviceAllocator(c10::DeviceType device)
    : device_(device),
      deleter_(device == c10::kCPU ? &free_block<c10::kCPU> : &free_block<c10::kMeta>),
      current_(default_resource(device)) {
  c10::SetAllocator(device, this, /*priority=*/1);
}

DeviceAllocator& DeviceAllocator::of(c10::DeviceType device) {
  // Never destroyed: tensors with our deleter may outlive every static object.
  if (device == c10::kCPU) {
    static DeviceAllocator& cpu = *std::unique_ptr<DeviceAllocator>(new DeviceAllocator(c10::kCPU)).release();
    return cpu;
  }
  ensure(device == c10::kMeta, "no allocator slot for ", c10::DeviceTypeName(device));
  static DeviceAllocator& meta = *std::unique_ptr<DeviceAllocator>(new DeviceAllocator(c10::kMeta)).release();
  return meta;
}

std::shared_ptr<Resource> DeviceAllocator::current() {
  std::lock_guard lock(mutex_);
  return current_;
}

std::shared_ptr<Resource> DeviceAllocator::exchange(std::shared_ptr<Resource> resource) {
  std::lock_guard lock(mutex_);
  return std::exchange(current_, std::move(resource));
}

c10::DataPtr DeviceAllocator::allocate(std::size_t bytes) {
  const c10::Device device(device_);  // as torch's own: a gradient must be where its tensor is
  if (bytes == 0) return {nullptr, nullptr, deleter_, device};
  std::shared_ptr<Resource> owner = current();
  void* address = owner->allocate(bytes);
  {
    Shard& home = shard(address);
    std::lock_guard lock(home.mutex);
    home.blocks.insert_or_assign(address, Block{bytes, std::move(owner)});
  }
  // A Meta tensor has no data; its address serves as the context by which we know the block again.
  return {device_ == c10::kMeta ? nullptr : address, address, deleter_, device};
}

c10::DeleterFnPtr DeviceAllocator::raw_deleter() const {
  return deleter_;
}

void DeviceAllocator::free(void* address) noexcept {
  if (!address) return;
  Block block{};
  {
    Shard& home = shard(address);
    std::lock_guard lock(home.mutex);
    auto entry = home.blocks.find(address);
    if (entry != home.blocks.end()) {
      block = std::move(entry->second);
      home.blocks.erase(entry);
    }
  }
  if (block.owner) {
    block.owner->deallocate(address, block.bytes);
  } else {
    // Allocated raw before this allocator was installed, freed through torch's slot after.
    default_resource(device_)->deallocate(address, 0);
  }
}

bool DeviceAllocator::adopt(c10::DataPtr& data, std::size_t bytes, const Resource& from,
                            std::shared_ptr<Resource> owner) {
  if (!data.get_context()) return false;
  Shard& home = shard(data.get_context());
  std::lock_guard lock(home.mutex);
  auto known = home.blocks.find(data.get_context());
  if (known != home.blocks.end()) {
    if (data.get_deleter() != deleter_ || known->second.owner.get() != &from) return false;
  } else if (device_ != c10::kCPU ||
             !data.compare_exchange_deleter(c10::GetDefaultCPUAllocator()->raw_deleter(), deleter_)) {
    return false;
  }
  home.blocks.insert_or_assign(data.get_context(), Block{bytes, std::move(owner)});
  return true;
}

void DeviceAllocator::give_back(const Resource& owner, const std::shared_ptr<Resource>& to) {
  for (Shard& home : shards_) {
    std::lock_guard lock(home.mutex);
    for (auto& [address, block] : home.blocks)
      if (block.owner.get() == &owner) block.owner = to;
  }
}

}  // namespace snug::memory
