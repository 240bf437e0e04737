// The one object in torch's allocator slot of a device: a list of sources and watches, which come and go in
// any order, on any thread. New bytes come from the last source and pass the watches after it; a block goes
// back to its own source, past those of its watches that are left. Internal to memory.
#pragma once

#include <c10/core/Allocator.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "snug/memory/watched_resource.h"

namespace snug::memory {

class DeviceAllocator final : public c10::Allocator {
 public:
  static DeviceAllocator& of(c10::DeviceType device);  // installed in torch's slot on first use, for ever

  using Place = std::uint64_t;
  Place add(std::shared_ptr<Resource> source);
  Place add(std::shared_ptr<Watch> watch);
  void remove(Place place);  // closes a watch; older blocks pass it no more

  std::shared_ptr<Resource> current();

  // `watch` hears of the free of a block that is older than it. False if the block came from elsewhere:
  // from_blob, mapped or pinned memory.
  bool adopt(c10::DataPtr& data, std::size_t bytes, std::shared_ptr<Watch> watch);

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

  struct Entry {  // one of the two
    std::shared_ptr<Resource> source;
    std::shared_ptr<Watch> watch;
  };
  Place add(Entry entry);
  void relink();
  void forget(const Watch& watch);

  struct Block {
    std::size_t bytes;
    std::shared_ptr<WatchedResource> owner;
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
  std::map<Place, Entry> entries_;  // the innermost last
  Place next_ = 0;
  std::shared_ptr<WatchedResource> current_;
  std::array<Shard, 16> shards_;
};

}  // namespace snug::memory
