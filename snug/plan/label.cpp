#include "snug/plan/label.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace snug::plan {

namespace {

// Whatever dominates a label comes before it.
bool is_earlier(const Label& a, const Label& b) {
  const auto key = [](const Label& label) {
    const ChainState& s = label.state;
    return std::tie(s.seconds, s.kept_bytes, s.peak_bytes, s.moving_bytes, label.parent, label.choice);
  };
  return key(a) < key(b);
}

// The lowest peak seen so far for each number of kept bytes; peaks fall where kept bytes rise.
class Staircase {
 public:
  bool covers(std::uint64_t kept, std::uint64_t peak) const {
    const auto above = lowest_.upper_bound(kept);
    return above != lowest_.begin() && std::prev(above)->second <= peak;
  }
  void add(std::uint64_t kept, std::uint64_t peak) {
    auto above = lowest_.upper_bound(kept);
    while (above != lowest_.end() && above->second >= peak) above = lowest_.erase(above);
    lowest_.insert_or_assign(above, kept, peak);
  }

 private:
  std::map<std::uint64_t, std::uint64_t> lowest_;
};

std::uint64_t footprint(const Label& label) {
  return label.state.kept_bytes + label.state.moving_bytes;
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

// Neighbours are alike. The peak counts coarsely: labels that share one differ in what they hold.
void sort_by_memory(std::vector<Label>& labels) {
  constexpr double kLevels = 256;
  const auto [low, high] = std::ranges::minmax(labels, {}, [](const Label& l) { return l.state.peak_bytes; });
  const std::uint64_t base = low.state.peak_bytes;
  const double scale = kLevels / static_cast<double>(high.state.peak_bytes - base + 1);
  const auto key = [&](const Label& label) {
    const auto level = static_cast<int>(static_cast<double>(label.state.peak_bytes - base) * scale);
    return std::tuple(label.state.moving_bytes, level, label.state.kept_bytes, label.state.seconds);
  };
  std::ranges::sort(labels, [&](const Label& a, const Label& b) {
    const auto left = key(a), right = key(b);
    return left != right ? left < right : is_earlier(a, b);
  });
}

// Several, because with bytes on the move the peak is only a bound: the lowest one may not hold.
void keep_lowest(std::vector<Label>& labels, std::size_t count, std::vector<Label>& left) {
  const auto end = labels.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::partial_sort(labels, end, {}, [](const Label& label) {
    return std::tuple(label.state.peak_bytes, footprint(label), label.state.seconds, label.parent,
                      label.choice);
  });
  left.insert(left.end(), labels.begin(), end);
}

}  // namespace

// By rising seconds, so that what came before is as fast. Few different numbers of bytes are ever on the
// move.
void drop_dominated(std::vector<Label>& labels) {
  std::ranges::sort(labels, is_earlier);
  std::map<std::uint64_t, Staircase> seen;  // by bytes on the move
  std::erase_if(labels, [&](const Label& label) {
    const auto& [kept, moving, peak, seconds] = label.state;
    for (const auto& [as_much, staircase] : seen) {
      if (as_much > moving) break;
      if (staircase.covers(kept, peak)) return true;
    }
    seen[moving].add(kept, peak);
    return false;
  });
}

void thin(std::vector<Label>& labels, std::size_t most) {
  if (labels.size() <= most) return;
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
