// The rules are those of DeviceCachingAllocator in torch's c10/cuda/CUDACachingAllocator.cpp; its function
// names stand beside ours.
#include "snug/plan/caching_allocator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "snug/base/error.h"

namespace snug::plan {
namespace {

// PyTorch 2.11, c10/core/AllocatorConfig.h, under the same names.
constexpr std::uint64_t kMinBlockSize = 512;        // sizes are multiples of it
constexpr std::uint64_t kSmallSize = 1048576;       // largest request of the small pool
constexpr std::uint64_t kSmallBuffer = 2097152;     // segment or page of the small pool
constexpr std::uint64_t kMinLargeAlloc = 10485760;  // from here on a segment has the size asked for
constexpr std::uint64_t kRoundLarge = 2097152;      // rounded up to this
constexpr std::uint64_t kLargeSegment = 20971520;   // large_segment_size_: below it; page of the large pool
// c10/cuda/CUDACachingAllocator.cpp, one_exa_bytes: torch refuses it.
constexpr std::uint64_t kTooLarge = 1152921504606846976;

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// get_allocation_size
std::uint64_t segment_bytes(std::uint64_t bytes) {
  if (bytes <= kSmallSize) return kSmallBuffer;
  if (bytes < kMinLargeAlloc) return kLargeSegment;
  return round_up(bytes, kRoundLarge);
}

}  // namespace

std::uint64_t CachingAllocator::Pool::page_bytes() const {
  return small ? kSmallBuffer : kLargeSegment;
}

void CachingAllocator::Statistic::add(std::uint64_t bytes) {
  current += bytes;
  peak = std::max(peak, current);
}

CachingAllocator::CachingAllocator(CachingAllocatorOptions options)
    : options_(std::move(options)),
      pools_{Pool{.small = true, .free = {}, .unmapped = {}},
             Pool{.small = false, .free = {}, .unmapped = {}}} {
  check(options_.device_bytes > 0 && options_.device_bytes < kTooLarge,
        "device_bytes must be the memory of a GPU, got ", options_.device_bytes);
}

CachingAllocator::CachingAllocator(
    CachingAllocatorOptions options, const trace::AllocatorLayout& layout,
    const std::function<void(const trace::AllocatorLayout::Block&, Handle)>& is_there)
    : CachingAllocator(std::move(options)) {
  for (const auto& segment : layout.segments) load(segment, is_there);
}

// malloc
std::optional<CachingAllocator::Handle> CachingAllocator::allocate(std::uint64_t bytes) {
  check(bytes < kTooLarge, "an allocation must be smaller than 2^60 bytes, got ", bytes);
  if (bytes == 0) return 0;
  const Request wanted = request(bytes);
  Index found = take_free(wanted);
  if (found == kNone) found = grow(wanted);
  if (found == kNone) {
    empty_cache();
    ++retries_;
    found = grow(wanted);
  }
  if (found == kNone) return std::nullopt;
  return hand_out(found, wanted);
}

// free_block
void CachingAllocator::free(Handle handle) {
  if (handle == 0) return;
  const Index index = live(handle);
  Block& block = blocks_[index];
  allocated_.current -= block.bytes;
  block.state = BlockState::Free;
  merge_neighbours(index);
  list(index);
}

// release_cached_blocks
void CachingAllocator::empty_cache() {
  for (Pool& pool : pools_) release_cached(pool);
}

std::uint64_t CachingAllocator::address(Handle handle) const {
  return blocks_[live(handle)].address;
}

std::vector<BlockInfo> CachingAllocator::layout() const {
  std::vector<BlockInfo> all;
  for (const Block& block : blocks_)
    if (block.bytes > 0) all.push_back(block);
  std::ranges::sort(all, {}, &BlockInfo::address);
  return all;
}

// round_size, get_pool
CachingAllocator::Request CachingAllocator::request(std::uint64_t bytes) {
  const std::uint64_t rounded = round_up(bytes, kMinBlockSize);
  return {.bytes = rounded,
          .segment_bytes = segment_bytes(rounded),
          .pool = pools_[rounded <= kSmallSize ? 0 : 1]};
}

// get_free_block: the smallest that is large enough. A block that can grow counts with what it can grow by,
// so the end of an expandable segment is broken last.
CachingAllocator::Index CachingAllocator::take_free(const Request& request) {
  auto& free = request.pool.free;
  auto best = free.lower_bound({.bytes = request.bytes, .address = 0, .index = 0});
  if (best == free.end()) return kNone;
  for (auto next = std::next(best); next != free.end() && reach(next->index) < reach(best->index); ++next)
    best = next;
  const Index index = best->index;
  free.erase(best);
  return index;
}

std::uint64_t CachingAllocator::reach(Index index) const {
  const Block& block = blocks_[index];
  const bool grows = block.next != kNone && blocks_[block.next].state == BlockState::Unmapped;
  return block.bytes + (grows ? blocks_[block.next].bytes : 0);
}

// alloc_block
CachingAllocator::Index CachingAllocator::grow(const Request& request) {
  needed_limit_ = std::max(needed_limit_, reserved_.current + request.segment_bytes);
  if (options_.limit_bytes && reserved_.current + request.segment_bytes > *options_.limit_bytes) return kNone;
  if (options_.expandable_segments) return map_more(request);
  reserved_.add(request.segment_bytes);
  return make_segment(request.segment_bytes, request.pool.small, BlockState::Free);
}

// try_allocate_expandable_block
CachingAllocator::Index CachingAllocator::map_more(const Request& request) {
  Index index = find_room(request);
  if (index == kNone) return kNone;
  if (blocks_[index].state == BlockState::Unmapped) index = map(index, request.bytes);
  while (blocks_[index].bytes < request.bytes)
    index = map(blocks_[index].next, request.bytes - blocks_[index].bytes);
  unlist(index);
  return index;
}

// find_expandable_block: the lowest unmapped place, together with the free block before it, that has the
// room.
CachingAllocator::Index CachingAllocator::find_room(const Request& request) {
  for (const Key& key : request.pool.unmapped) {
    const Index before = blocks_[key.index].previous;
    const bool usable = before != kNone && blocks_[before].state == BlockState::Free;
    const Index start = usable ? before : key.index;
    if (has_room(start, request.bytes)) return start;
  }
  const std::uint64_t addresses =  // ExpandableSegment()
      round_up(options_.device_bytes + options_.device_bytes / 8, request.pool.page_bytes());
  if (addresses < request.bytes) return kNone;
  const Index index = make_segment(addresses, request.pool.small, BlockState::Unmapped);
  list(index);
  return index;
}

bool CachingAllocator::has_room(Index start, std::uint64_t bytes) const {
  std::uint64_t found = 0;
  for (Index i = start; found < bytes && i != kNone && blocks_[i].state != BlockState::Allocated;
       i = blocks_[i].next)
    found += blocks_[i].bytes;
  return found >= bytes;
}

// alloc_found_block
CachingAllocator::Handle CachingAllocator::hand_out(Index index, const Request& request) {
  Index given = index;
  if (splits(index, request.bytes)) {
    given = split_front(index, request.bytes);
    list(index);
  }
  blocks_[given].state = BlockState::Allocated;
  allocated_.add(blocks_[given].bytes);
  return given + 1;
}

// should_split
bool CachingAllocator::splits(Index index, std::uint64_t bytes) const {
  const std::uint64_t rest = blocks_[index].bytes - bytes;
  return blocks_[index].small || options_.expandable_segments ? rest >= kMinBlockSize : rest > kSmallSize;
}

// map_block: as many pages at the front of an unmapped block as hold the bytes, or all it has. Gives the free
// block they became part of.
CachingAllocator::Index CachingAllocator::map(Index index, std::uint64_t bytes) {
  unlist(index);
  const std::uint64_t mapped = std::min(round_up(bytes, pool(index).page_bytes()), blocks_[index].bytes);
  Index front = index;
  if (mapped < blocks_[index].bytes) {
    front = split_front(index, mapped);
    list(index);
  }
  blocks_[front].state = BlockState::Free;
  merge_neighbours(front);
  list(front);
  reserved_.add(mapped);
  return front;
}

// unmap_block: gives back the whole pages of a free block; what lies before and after them stays.
void CachingAllocator::unmap(Index index) {
  const Block block = blocks_[index];
  const std::uint64_t page = pool(index).page_bytes();
  const std::uint64_t offset = block.address - block.segment;
  const std::uint64_t begin = round_up(offset, page);
  const std::uint64_t end = (offset + block.bytes) / page * page;
  if (begin >= end) return;
  unlist(index);
  if (begin > offset) list(split_front(index, begin - offset));
  Index pages = index;
  if (end - begin < blocks_[index].bytes) {
    pages = split_front(index, end - begin);
    list(index);
  }
  blocks_[pages].state = BlockState::Unmapped;
  merge_neighbours(pages);
  reserved_.current -= end - begin;
  if (blocks_[pages].previous == kNone && blocks_[pages].next == kNone)
    drop_block(pages);  // the segment is empty
  else
    list(pages);
}

// release_blocks: whole free segments, or the whole free pages of expandable ones.
void CachingAllocator::release_cached(Pool& pool) {
  const std::vector<Key> cached(pool.free.begin(), pool.free.end());
  for (const Key& key : cached) {
    const Block& block = blocks_[key.index];
    if (block.grows) {
      unmap(key.index);
    } else if (block.previous == kNone && block.next == kNone) {
      reserved_.current -= block.bytes;
      unlist(key.index);
      drop_block(key.index);
    }
  }
}

CachingAllocator::Index CachingAllocator::make_segment(std::uint64_t bytes, bool small, BlockState state) {
  const std::uint64_t address = options_.place_segment ? options_.place_segment(bytes)
                                                       : std::exchange(next_address_, next_address_ + bytes);
  return make_block(
      {{address, address, bytes, state, small, /*grows=*/state == BlockState::Unmapped}, kNone, kNone});
}

// One block after the other, with what is not mapped before, between and after them.
void CachingAllocator::load(
    const trace::AllocatorLayout::Segment& segment,
    const std::function<void(const trace::AllocatorLayout::Block&, Handle)>& is_there) {
  Index last = kNone;
  std::uint64_t address = segment.address;
  const auto add = [&](std::uint64_t bytes, BlockState state) {
    const Index index =
        make_block({{segment.address, address, bytes, state, segment.is_small, segment.grows}, last, kNone});
    if (last != kNone) blocks_[last].next = index;
    if (state != BlockState::Allocated) list(index);
    if (state != BlockState::Unmapped) reserved_.add(bytes);
    if (state == BlockState::Allocated) allocated_.add(bytes);
    address += bytes;
    return last = index;
  };
  for (const trace::AllocatorLayout::Block& block : segment.blocks) {
    if (block.address > address) add(block.address - address, BlockState::Unmapped);
    const Index index = add(block.bytes, block.is_free ? BlockState::Free : BlockState::Allocated);
    if (!block.is_free) is_there(block, index + 1);
  }
  if (const std::uint64_t end = segment.address + segment.bytes; end > address)
    add(end - address, BlockState::Unmapped);
  next_address_ = std::max(next_address_, segment.address + segment.bytes);
}

CachingAllocator::Index CachingAllocator::make_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return blocks_.size() - 1;
  }
  const Index index = unused_.back();
  unused_.pop_back();
  blocks_[index] = block;
  return index;
}

void CachingAllocator::drop_block(Index index) {
  blocks_[index].bytes = 0;
  blocks_[index].state = BlockState::Free;
  unused_.push_back(index);
}

// Cuts a block that is in no list. The front is a block of its own, the given one keeps the rest.
CachingAllocator::Index CachingAllocator::split_front(Index index, std::uint64_t bytes) {
  Block front = blocks_[index];
  front.bytes = bytes;
  front.next = index;
  const Index made = make_block(front);
  if (front.previous != kNone) blocks_[front.previous].next = made;
  Block& rest = blocks_[index];
  rest.previous = made;
  rest.address += bytes;
  rest.bytes -= bytes;
  return made;
}

// try_merge_blocks, on both sides
void CachingAllocator::merge_neighbours(Index index) {
  absorb(index, blocks_[index].previous);
  absorb(index, blocks_[index].next);
}

void CachingAllocator::absorb(Index index, Index neighbour) {
  if (neighbour == kNone || blocks_[neighbour].state != blocks_[index].state) return;
  unlist(neighbour);
  Block& block = blocks_[index];
  const Block& other = blocks_[neighbour];
  block.bytes += other.bytes;
  if (block.previous == neighbour) {
    block.address = other.address;
    block.previous = other.previous;
    if (block.previous != kNone) blocks_[block.previous].next = index;
  } else {
    block.next = other.next;
    if (block.next != kNone) blocks_[block.next].previous = index;
  }
  drop_block(neighbour);
}

void CachingAllocator::list(Index index) {
  pool(index).of(blocks_[index].state).insert(key(index));
}

void CachingAllocator::unlist(Index index) {
  const auto erased = pool(index).of(blocks_[index].state).erase(key(index));
  ensure(erased == 1, "a free block is in no list");
}

CachingAllocator::Key CachingAllocator::key(Index index) const {
  const Block& block = blocks_[index];
  return {
      .bytes = block.state == BlockState::Free ? block.bytes : 0, .address = block.address, .index = index};
}

CachingAllocator::Index CachingAllocator::live(Handle handle) const {
  check(handle >= 1 && handle <= blocks_.size() && blocks_[handle - 1].state == BlockState::Allocated,
        "no live block has the handle ", handle, "; was it freed before?");
  return handle - 1;
}

}  // namespace snug::plan
