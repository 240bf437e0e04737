#include "snug/plan/label.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace snug::plan {

namespace {

// Whatever dominates a label comes before it, in both orders.
bool is_earlier(const Label& a, const Label& b) {
  const auto key = [](const Label& label) {
    const ChainState& s = label.state;
    return std::tie(s.seconds, s.kept_bytes, s.peak_bytes, s.queued_bytes, s.lead_bytes, label.parent,
                    label.choice);
  };
  return key(a) < key(b);
}

bool is_smaller(const Label& a, const Label& b) {
  return a.state.kept_bytes != b.state.kept_bytes ? a.state.kept_bytes < b.state.kept_bytes
                                                  : is_earlier(a, b);
}

bool has_queue(const Label& label) {
  return label.state.queued_bytes > 0 || label.state.lead_bytes > 0;
}

// The lowest peak seen so far for each number of kept bytes; peaks fall where kept bytes rise.
class Staircase {
 public:
  bool add(std::uint64_t kept, std::uint64_t peak) {
    auto above = lowest_.upper_bound(kept);
    if (above != lowest_.begin() && std::prev(above)->second <= peak) return false;
    while (above != lowest_.end() && above->second >= peak) above = lowest_.erase(above);
    lowest_.insert_or_assign(above, kept, peak);
    return true;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> lowest_;
};

// With queues there is no order to search in. Labels come by rising kept bytes, so neighbours are alike, and
// most blocks of them are too slow as a whole.
class DominanceScan {
 public:
  bool add(const ChainState& state) {
    for (std::size_t i = lowest_.size(); i-- > 0;)  // the nearest ones first
      if (is_within(lowest_[i], state) && is_dominated(i, state)) return false;
    if (seen_.size() % kBlock == 0) lowest_.push_back(state);
    seen_.push_back(state);
    ChainState& lowest = lowest_.back();
    lowest.queued_bytes = std::min(lowest.queued_bytes, state.queued_bytes);
    lowest.lead_bytes = std::min(lowest.lead_bytes, state.lead_bytes);
    lowest.peak_bytes = std::min(lowest.peak_bytes, state.peak_bytes);
    lowest.seconds = std::min(lowest.seconds, state.seconds);
    return true;
  }

 private:
  static constexpr std::size_t kBlock = 32;

  static bool is_within(const ChainState& a, const ChainState& b) {
    return a.seconds <= b.seconds && a.queued_bytes <= b.queued_bytes && a.lead_bytes <= b.lead_bytes &&
           a.peak_bytes <= b.peak_bytes;
  }

  bool is_dominated(std::size_t block, const ChainState& state) const {
    const std::size_t end = std::min(seen_.size(), (block + 1) * kBlock);
    for (std::size_t i = block * kBlock; i < end; ++i)
      if (is_within(seen_[i], state)) return true;
    return false;
  }

  std::vector<ChainState> seen_;
  std::vector<ChainState> lowest_;  // of each block, in every respect
};

std::uint64_t footprint(const Label& label) {
  return label.state.kept_bytes + std::max(label.state.queued_bytes, label.state.lead_bytes);
}

// Nearest to the group's own exchange rate of bytes for seconds, so that neither end of a group is favoured.
const Label& best_of(std::span<const Label> group) {
  const auto [small, large] = std::ranges::minmax(group, {}, footprint);
  const auto [fast, slow] = std::ranges::minmax(group, {}, [](const Label& l) { return l.state.seconds; });
  const auto bytes = static_cast<double>(footprint(large) - footprint(small));
  const double rate = bytes > 0 ? (slow.state.seconds - fast.state.seconds) / bytes : 0;
  return *std::ranges::min_element(group, {}, [&](const Label& label) {
    return label.state.seconds + rate * static_cast<double>(footprint(label));
  });
}

// Neighbours are alike. The peak comes first, but coarsely: labels that share one differ in what they hold.
void sort_by_memory(std::vector<Label>& labels) {
  constexpr double kLevels = 256;
  const auto [low, high] = std::ranges::minmax(labels, {}, [](const Label& l) { return l.state.peak_bytes; });
  const std::uint64_t base = low.state.peak_bytes;
  const double scale = kLevels / static_cast<double>(high.state.peak_bytes - base + 1);
  const auto key = [&](const Label& label) {
    const auto level = static_cast<int>(static_cast<double>(label.state.peak_bytes - base) * scale);
    return std::tuple(level, footprint(label), label.state.seconds);
  };
  std::ranges::sort(labels, [&](const Label& a, const Label& b) {
    const auto left = key(a), right = key(b);
    return left != right ? left < right : is_earlier(a, b);
  });
}

// Several, because with queues the peak is only a bound: the lowest one may not hold.
void keep_lowest(std::vector<Label>& labels, std::size_t count, std::vector<Label>& left) {
  const auto end = labels.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::partial_sort(labels, end, {}, [](const Label& label) {
    return std::tuple(label.state.peak_bytes, footprint(label), label.state.seconds, label.parent,
                      label.choice);
  });
  left.insert(left.end(), labels.begin(), end);
}

}  // namespace

void drop_dominated(std::vector<Label>& labels) {
  if (std::ranges::any_of(labels, has_queue)) {
    std::ranges::sort(labels, is_smaller);
    DominanceScan seen;
    std::erase_if(labels, [&](const Label& label) { return !seen.add(label.state); });
  } else {
    std::ranges::sort(labels, is_earlier);
    Staircase seen;
    std::erase_if(labels, [&](const Label& label) {
      return !seen.add(label.state.kept_bytes, label.state.peak_bytes);
    });
  }
}

void thin(std::vector<Label>& labels, std::size_t most) {
  if (labels.size() <= most) return;
  constexpr std::size_t kQueueShare = 6;  // with queues, dominance costs more and removes less
  if (std::ranges::any_of(labels, has_queue)) most = std::max<std::size_t>(2, most / kQueueShare);
  std::vector<Label> left{*std::ranges::min_element(labels, is_earlier)};
  keep_lowest(labels, std::max<std::size_t>(1, most / 8), left);
  sort_by_memory(labels);
  const std::size_t groups = most - left.size();
  for (std::size_t i = 0; i < groups; ++i) {
    const std::size_t from = i * labels.size() / groups, to = (i + 1) * labels.size() / groups;
    left.push_back(best_of(std::span(labels).subspan(from, to - from)));
  }
  labels = std::move(left);
}

}  // namespace snug::plan
