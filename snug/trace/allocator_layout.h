// Where the blocks of torch's CUDA allocator lie: what the next step begins with.
#pragma once

#include <cstdint>
#include <vector>

#include "snug/trace/event.h"

namespace snug::trace {

struct AllocatorLayout {
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool is_free = false;
    BlockId id = 0;  // in the account of whoever watches; 0: none, or free
  };
  struct Segment {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // of addresses: one that grows has more than it has memory
    bool is_small = false;
    bool grows = false;
    std::vector<Block> blocks;  // by rising address; nothing is mapped between them
  };

  std::vector<Segment> segments;
};

}  // namespace snug::trace
