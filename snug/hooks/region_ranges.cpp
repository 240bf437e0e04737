#include "snug/hooks/region_ranges.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace snug::hooks {

namespace ag = torch::autograd;

namespace {

struct Range {
  std::uint64_t first;
  RegionId region;
};

// Far more changes of region than any live graph holds; older ones are forgotten by halves.
constexpr std::size_t kMostRanges = 1 << 16;

struct Ranges {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::vector<Range>> by_thread;
};
Ranges& ranges() {
  static Ranges table;
  return table;
}

}  // namespace

RegionId begin_range(RegionId id) {
  const std::uint64_t first = at::sequence_number::peek();
  auto& table = ranges();
  std::lock_guard lock(table.mutex);
  auto& list = table.by_thread[at::RecordFunction::currentThreadId()];
  const RegionId before = list.empty() ? 0 : list.back().region;
  if (before == id) return before;
  if (!list.empty() && list.back().first == first) {
    list.back().region = id;
    return before;
  }
  if (list.size() == kMostRanges) list.erase(list.begin(), list.begin() + kMostRanges / 2);
  list.push_back({first, id});
  return before;
}

bool is_accumulation(const ag::Node& node) {
  return node.sequence_nr() == std::numeric_limits<std::uint64_t>::max();
}

RegionId region_of(const ag::Node& node, RegionId before) {
  if (is_accumulation(node)) {
    const auto* accumulate = dynamic_cast<const ag::AccumulateGrad*>(&node);
    const RegionId home = accumulate ? region_of_parameter(accumulate->variable) : 0;
    return home ? home : before;
  }
  auto& table = ranges();
  std::lock_guard lock(table.mutex);
  auto thread = table.by_thread.find(node.thread_id());
  if (thread == table.by_thread.end()) return 0;
  const auto& list = thread->second;
  auto after =
      std::upper_bound(list.begin(), list.end(), node.sequence_nr(),
                       [](std::uint64_t number, const Range& range) { return number < range.first; });
  return after == list.begin() ? 0 : std::prev(after)->region;
}

}  // namespace snug::hooks
