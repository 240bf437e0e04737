// The running account: live and peak bytes by category and region. Constant work per event.
//
//   Ledger ledger;
//   for (const Event& event : events) ledger.apply(event);
//   ledger.peak().total;               // and by category and region, as they were at that moment
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/event.h"

namespace snug::trace {

using CategoryBytes = std::array<std::uint64_t, kCategories>;

// The account at one moment.
struct SNUG_API Snapshot {
  struct Region {
    std::string name;  // "" = outside every region
    CategoryBytes bytes{};
    std::uint64_t total() const;
  };
  std::uint64_t total = 0;
  CategoryBytes bytes{};
  std::vector<Region> regions;  // those with live bytes, largest first

  std::uint64_t operator[](Category category) const { return bytes[static_cast<std::size_t>(category)]; }
};

class SNUG_API Ledger {
 public:
  // Alloc, Free and Retag change the account; the other kinds are accepted and change nothing. Freeing or
  // retagging an unknown block, or allocating one that is live, is an InternalError.
  void apply(const Event& event);

  std::uint64_t live_bytes() const { return live_; }
  std::uint64_t live_bytes(Category category) const;
  std::uint64_t peak_bytes() const { return peak_; }
  std::size_t live_blocks() const { return blocks_.size(); }

  // An Alloc for each live block, in the order in which they came.
  std::vector<Event> live_allocations() const;

  Snapshot live(const NameTable& names) const;
  // The first moment at which the total was highest since reset_peak().
  Snapshot peak(const NameTable& names) const;
  // The highest each category reached by itself since reset_peak(); their sum is not the peak.
  CategoryBytes category_peaks() const;
  void reset_peak();  // the peak starts again from what is live

 private:
  struct Block {
    std::uint64_t bytes;
    Category category;
    NameId region;
  };
  // Bytes of one (region, category). `at_peak` is filled lazily: it is right when `epoch` is the ledger's,
  // else the cell has not changed since the peak and `live` is the value at the peak.
  struct Cell {
    std::uint64_t live = 0;
    std::uint64_t at_peak = 0;
    std::uint64_t epoch = 0;
  };

  Cell& cell(NameId region, Category category);
  void change(NameId region, Category category, std::int64_t delta);
  void note_peak();
  Snapshot collect(const NameTable& names, bool at_peak) const;

  std::unordered_map<BlockId, Block> blocks_;
  std::vector<std::array<Cell, kCategories>> regions_;
  CategoryBytes by_category_{};
  CategoryBytes category_peaks_{};
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t epoch_ = 1;
};

}  // namespace snug::trace
