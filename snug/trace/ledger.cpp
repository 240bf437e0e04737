// The account. A peak costs one increment: cells copy their value aside only when they next change.
#include "snug/trace/ledger.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "snug/base/error.h"

namespace snug::trace {
namespace {

// Sums stay within a signed 64-bit number, so that differences do too.
constexpr std::uint64_t kMaxTotal = std::numeric_limits<std::int64_t>::max();

std::size_t index(Category category) {
  return static_cast<std::size_t>(category);
}

}  // namespace

std::uint64_t Snapshot::Region::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

void Ledger::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::Alloc: {
      ensure(event.block != 0, "a block was allocated without a number");
      ensure(event.bytes <= kMaxTotal - live_, "allocating ", event.bytes, " bytes overflows the account");
      const auto [at, added] =
          blocks_.try_emplace(event.block, Block{event.bytes, event.category, event.region});
      ensure(added, "block ", event.block, " was allocated while it is live");
      change(event.region, event.category, static_cast<std::int64_t>(event.bytes));
      live_ += event.bytes;
      note_peak();
      break;
    }
    case EventKind::Free: {
      const auto found = blocks_.find(event.block);
      ensure(found != blocks_.end(), "block ", event.block, " was freed but is not live");
      const Block block = found->second;
      blocks_.erase(found);
      change(block.region, block.category, -static_cast<std::int64_t>(block.bytes));
      live_ -= block.bytes;
      break;
    }
    case EventKind::Retag: {
      const auto found = blocks_.find(event.block);
      ensure(found != blocks_.end(), "block ", event.block, " was retagged but is not live");
      Block& block = found->second;
      change(block.region, block.category, -static_cast<std::int64_t>(block.bytes));
      block.category = event.category;
      if (block.region == 0) block.region = event.region;
      change(block.region, block.category, static_cast<std::int64_t>(block.bytes));
      break;
    }
    default:
      break;
  }
}

std::vector<Event> Ledger::live_allocations() const {
  std::vector<Event> allocations;
  for (const auto& [id, block] : blocks_)
    allocations.push_back({.kind = EventKind::Alloc,
                           .category = block.category,
                           .region = block.region,
                           .block = id,
                           .bytes = block.bytes});
  std::ranges::sort(allocations, {}, &Event::block);
  return allocations;
}

Ledger::Cell& Ledger::cell(NameId region, Category category) {
  if (region >= regions_.size()) regions_.resize(region + std::size_t{1});
  return regions_[region][index(category)];
}

void Ledger::change(NameId region, Category category, std::int64_t delta) {
  Cell& changed = cell(region, category);
  if (changed.epoch != epoch_) {
    changed.at_peak = changed.live;
    changed.epoch = epoch_;
  }
  changed.live += static_cast<std::uint64_t>(delta);
  std::uint64_t& total = by_category_[index(category)];
  total += static_cast<std::uint64_t>(delta);
  category_peaks_[index(category)] = std::max(category_peaks_[index(category)], total);
}

// Runs after the cell has changed: with the epoch moved on, every cell's live value is its value at this
// peak.
void Ledger::note_peak() {
  if (live_ <= peak_) return;
  peak_ = live_;
  ++epoch_;
}

void Ledger::reset_peak() {
  peak_ = live_;
  category_peaks_ = by_category_;
  ++epoch_;
}

std::uint64_t Ledger::live_bytes(Category category) const {
  return by_category_[index(category)];
}

CategoryBytes Ledger::category_peaks() const {
  return category_peaks_;
}

Snapshot Ledger::live(const NameTable& names) const {
  return collect(names, false);
}

Snapshot Ledger::peak(const NameTable& names) const {
  return collect(names, true);
}

Snapshot Ledger::collect(const NameTable& names, bool at_peak) const {
  Snapshot snapshot;
  snapshot.total = at_peak ? peak_ : live_;
  for (std::size_t id = 0; id < regions_.size(); ++id) {
    Snapshot::Region region;
    for (std::size_t c = 0; c < kCategories; ++c) {
      const Cell& cell = regions_[id][c];
      region.bytes[c] = at_peak && cell.epoch == epoch_ ? cell.at_peak : cell.live;
      snapshot.bytes[c] += region.bytes[c];
    }
    if (region.total() == 0) continue;
    region.name = names[static_cast<NameId>(id)];
    snapshot.regions.push_back(std::move(region));
  }
  std::ranges::sort(snapshot.regions, [](const Snapshot::Region& a, const Snapshot::Region& b) {
    return a.total() != b.total() ? a.total() > b.total() : a.name < b.name;
  });
  return snapshot;
}

}  // namespace snug::trace
