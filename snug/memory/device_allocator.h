// The one object in torch's allocator slot of a device: hands every request to the current Resource. Internal
// to memory.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <mutex>
#include <unordered_map>

#include "snug/memory/resource.h"

namespace snug::memory {

class DeviceAllocator final : public c10::Allocator {
 public:
  static DeviceAllocator& of(c10::DeviceType device);  // installed in torch's slot on first use, for ever

  std::shared_ptr<Resource> current();
  std::shared_ptr<Resource> exchange(std::shared_ptr<Resource> resource);

  // Takes over a block that `from` (or torch's own allocator, before this one was installed) made earlier, so
  // that its free is seen by `owner`. False if it came from elsewhere: from_blob, mapped or pinned memory.
  bool adopt(c10::DataPtr& data, std::size_t bytes, const Resource& from, std::shared_ptr<Resource> owner);

  // Blocks that `owner` holds are `to`'s from here on.
  void give_back(const Resource& owner, const std::shared_ptr<Resource>& to);

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  explicit DeviceAllocator(c10::DeviceType device);
  template <c10::DeviceType device>
  static void free_block(void* address) {
    of(device).free(address);
  }
  void free(void* address) noexcept;

  struct Block {
    std::size_t bytes;
    std::shared_ptr<Resource> owner;
  };
  // Torch gives back an address without its size, and from any thread. Sixteen maps, so that threads seldom
  // meet.
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };
  Shard& shard(void* address) {
    return shards_[(reinterpret_cast<std::uintptr_t>(address) >> 6) % shards_.size()];
  }

  c10::DeviceType device_;
  c10::DeleterFnPtr deleter_;
  std::mutex mutex_;
  std::shared_ptr<Resource> current_;
  std::array<Shard, 16> shards_;
};

}  // namespace snug::memory
