#include "snug/memory/device_allocator.h"

#include <c10/core/CPUAllocator.h>

#include "snug/base/error.h"

namespace snug::memory {

DeviceAllocator::DeviceAllocator(c10::DeviceType device)
    : device_(device), deleter_(device == c10::kCPU ? &free_block<c10::kCPU> : &free_block<c10::kMeta>) {
  relink();
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

DeviceAllocator::Place DeviceAllocator::add(std::shared_ptr<Resource> source) {
  return add(Entry{std::move(source), nullptr});
}
DeviceAllocator::Place DeviceAllocator::add(std::shared_ptr<Watch> watch) {
  return add(Entry{nullptr, std::move(watch)});
}
DeviceAllocator::Place DeviceAllocator::add(Entry entry) {
  std::lock_guard lock(mutex_);
  entries_.emplace(next_, std::move(entry));
  relink();
  return next_++;
}

void DeviceAllocator::remove(Place place) {
  Entry gone;
  {
    std::lock_guard lock(mutex_);
    gone = std::move(entries_.extract(place).mapped());
    relink();
  }
  if (!gone.watch) return;
  gone.watch->close();
  forget(*gone.watch);
}

void DeviceAllocator::relink() {
  std::shared_ptr<Resource> source = default_resource(device_);
  WatchedResource::Watches watches;
  for (const auto& [place, entry] : entries_) {
    if (entry.watch) {
      watches.push_back(entry.watch);
    } else {
      source = entry.source;
      watches.clear();
    }
  }
  current_ = std::make_shared<WatchedResource>(std::move(source), std::move(watches));
}

std::shared_ptr<Resource> DeviceAllocator::current() {
  std::lock_guard lock(mutex_);
  return current_->watches().empty() ? current_->source() : current_;
}

c10::DataPtr DeviceAllocator::allocate(std::size_t bytes) {
  const c10::Device device(device_);  // as torch's own: a gradient must be where its tensor is
  if (bytes == 0) return {nullptr, nullptr, deleter_, device};
  std::shared_ptr<WatchedResource> owner;
  {
    std::lock_guard lock(mutex_);
    owner = current_;
  }
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

bool DeviceAllocator::adopt(c10::DataPtr& data, std::size_t bytes, std::shared_ptr<Watch> watch) {
  if (!data.get_context()) return false;
  Shard& home = shard(data.get_context());
  std::lock_guard lock(home.mutex);
  std::shared_ptr<Resource> source = default_resource(device_);
  WatchedResource::Watches watches;
  const auto known = home.blocks.find(data.get_context());
  if (known != home.blocks.end()) {
    if (data.get_deleter() != deleter_) return false;
    source = known->second.owner->source();
    watches = known->second.owner->watches();
  } else if (device_ != c10::kCPU ||
             !data.compare_exchange_deleter(c10::GetDefaultCPUAllocator()->raw_deleter(), deleter_)) {
    return false;
  }
  watches.push_back(std::move(watch));
  auto owner = std::make_shared<WatchedResource>(std::move(source), std::move(watches));
  home.blocks.insert_or_assign(data.get_context(), Block{bytes, std::move(owner)});
  return true;
}

void DeviceAllocator::forget(const Watch& watch) {
  std::map<std::shared_ptr<WatchedResource>, std::shared_ptr<WatchedResource>> without;
  for (Shard& home : shards_) {
    std::lock_guard lock(home.mutex);
    for (auto& [address, block] : home.blocks) {
      auto [entry, fresh] = without.try_emplace(block.owner, block.owner);
      if (fresh) {
        WatchedResource::Watches left = block.owner->watches();
        if (std::erase_if(left, [&](const auto& each) { return each.get() == &watch; }) > 0)
          entry->second = std::make_shared<WatchedResource>(block.owner->source(), std::move(left));
      }
      block.owner = entry->second;
    }
  }
}

}  // namespace snug::memory
