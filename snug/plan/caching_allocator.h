// What torch's CUDA caching allocator would take from the driver: the rules of PyTorch 2.11's c10, without
// torch and without a GPU. One device, one stream, torch's default settings but for those below.
//
//   CachingAllocator allocator({.limit_bytes = 8_GiB});
//   const auto block = allocator.allocate(bytes);
//   if (!block) ...                     // torch would throw its OutOfMemoryError here
//   allocator.free(*block);
//   allocator.peak_reserved_bytes();
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/export.h"
#include "snug/trace/allocator_layout.h"

namespace snug::plan {

struct CachingAllocatorOptions {
  bool expandable_segments = false;  // from start to end: switching in between is not modelled
  // The cap that setMemoryFraction sets. Checked as torch does, before pages are counted, so expandable
  // segments can exceed it by less than one page.
  std::optional<std::uint64_t> limit_bytes;
  // The GPU's whole memory. Not a cap: an expandable segment has addresses for 9/8 of it.
  std::uint64_t device_bytes = 1024_GiB;
  // The address of a new segment of so many bytes. Among free blocks of equal size the lowest address is
  // taken, so where the driver puts segments can matter. Default: each above the last.
  std::function<std::uint64_t(std::uint64_t bytes)> place_segment;
};

enum class BlockState : std::uint8_t { Free, Allocated, Unmapped };

struct BlockInfo {
  std::uint64_t segment = 0;  // its first address
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  BlockState state = BlockState::Free;
  bool small = false;  // of the pool of small ones
  bool grows = false;  // its segment does
};

class SNUG_API CachingAllocator {
 public:
  using Handle = std::uint64_t;  // that of a freed block is given out again

  explicit CachingAllocator(CachingAllocatorOptions options = {});
  // It begins with what is there, and says the handle of each block that is taken.
  CachingAllocator(CachingAllocatorOptions options, const trace::AllocatorLayout& layout,
                   const std::function<void(const trace::AllocatorLayout::Block&, Handle)>& is_there);

  // Nothing when the limit is reached even after all that is cached was given back; the cache stays empty
  // then, as in torch. Zero bytes take no block: the handle is 0, and freeing it does nothing.
  [[nodiscard]] std::optional<Handle> allocate(std::uint64_t bytes);
  void free(Handle handle);
  void empty_cache();

  std::uint64_t allocated_bytes() const { return allocated_.current; }
  std::uint64_t reserved_bytes() const { return reserved_.current; }
  std::uint64_t peak_allocated_bytes() const { return allocated_.peak; }
  std::uint64_t peak_reserved_bytes() const { return reserved_.peak; }
  std::uint64_t retries() const { return retries_; }  // torch's num_alloc_retries
  // With a limit of so much none of what was asked for would have been refused at first. Torch counts a whole
  // request against it, even where only a part needs new memory.
  std::uint64_t needed_limit_bytes() const { return needed_limit_; }

  std::uint64_t address(Handle handle) const;
  std::vector<BlockInfo> layout() const;  // every block, by address

 private:
  using Index = std::size_t;
  struct Block : BlockInfo {
    Index previous;  // neighbours in the segment
    Index next;
  };
  struct Key {
    std::uint64_t bytes;  // 0 among the unmapped, which are sorted by address alone
    std::uint64_t address;
    Index index;
    auto operator<=>(const Key&) const = default;
  };
  struct Pool {
    bool small;
    std::set<Key> free;
    std::set<Key> unmapped;
    std::uint64_t page_bytes() const;
    std::set<Key>& of(BlockState state) { return state == BlockState::Free ? free : unmapped; }
  };
  struct Request {
    std::uint64_t bytes;          // rounded
    std::uint64_t segment_bytes;  // to ask of the driver when no free block fits
    Pool& pool;
  };
  struct Statistic {
    std::uint64_t current = 0;
    std::uint64_t peak = 0;
    void add(std::uint64_t bytes);
  };

  Request request(std::uint64_t bytes);
  Index take_free(const Request& request);
  Index grow(const Request& request);
  Index map_more(const Request& request);
  Index find_room(const Request& request);
  bool has_room(Index start, std::uint64_t bytes) const;
  std::uint64_t reach(Index index) const;
  Handle hand_out(Index index, const Request& request);
  bool splits(Index index, std::uint64_t bytes) const;

  Index map(Index index, std::uint64_t bytes);
  void unmap(Index index);
  void release_cached(Pool& pool);

  Index make_segment(std::uint64_t bytes, bool small, BlockState state);
  void load(const trace::AllocatorLayout::Segment& segment,
            const std::function<void(const trace::AllocatorLayout::Block&, Handle)>& is_there);
  Index make_block(const Block& block);
  void drop_block(Index index);
  Index split_front(Index index, std::uint64_t bytes);
  void merge_neighbours(Index index);
  void absorb(Index index, Index neighbour);
  void list(Index index);
  void unlist(Index index);
  Key key(Index index) const;
  Pool& pool(Index index) { return pools_[blocks_[index].small ? 0 : 1]; }
  Index live(Handle handle) const;

  CachingAllocatorOptions options_;
  std::array<Pool, 2> pools_;  // small, large
  std::deque<Block> blocks_;
  std::vector<Index> unused_;  // places in blocks_
  std::uint64_t next_address_ = 0;
  Statistic allocated_;
  Statistic reserved_;
  std::uint64_t retries_ = 0;
  std::uint64_t needed_limit_ = 0;
};

}  // namespace snug::plan
