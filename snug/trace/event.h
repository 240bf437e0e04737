// What a step did to memory, as plain data. An Event means the same whether it was predicted or measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/category.h"

namespace snug::trace {

enum class EventKind : std::uint8_t {
  Alloc,   // block, bytes, category
  Free,    // block
  Retag,   // block, category: what the block is for became known; region: where it lives, if it was made
           // outside
  Op,      // name: an operator ran (after the allocations it made)
  Save,    // block, bytes: autograd saved a tensor on this block
  Unpack,  // block: the backward asked for it
  Copy,    // bytes, name "to_host" or "to_device"
  Mark,    // name: a phase or a step begins
};
inline constexpr std::size_t kEventKinds = 8;

// Index of a string in NameTable; 0 is the empty string. A region is the NameId of its name, 0 = outside all.
using NameId = std::uint32_t;
// Number of a block, counted from 1 in order of allocation; never reused. 0: not a tracked block.
using BlockId = std::uint64_t;

struct Event {
  EventKind kind = EventKind::Mark;
  Category category = Category::Other;
  NameId region = 0;
  NameId name = 0;
  BlockId block = 0;
  std::uint64_t bytes = 0;
  std::int64_t time_ns = 0;  // since the trace began; never decreases

  bool operator==(const Event&) const = default;
};

// Strings by number, each once.
class SNUG_API NameTable {
 public:
  NameTable() : names_{""} {}
  NameId intern(std::string_view text);
  const std::string& operator[](NameId id) const;  // throws InternalError for an id nobody interned
  std::size_t size() const { return names_.size(); }

 private:
  struct Hash {
    using is_transparent = void;  // looking up a string_view makes no string
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId, Hash, std::equal_to<>> ids_;
};

}  // namespace snug::trace
