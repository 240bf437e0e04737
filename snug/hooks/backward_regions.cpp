#include "snug/hooks/backward_regions.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <limits>
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
constexpr std::uint64_t kAccumulateGrad = std::numeric_limits<std::uint64_t>::max();

struct Ranges {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::vector<Range>> by_thread;
};
Ranges& ranges() {
  static Ranges table;
  return table;
}

RegionId region_of(const ag::Node& node, RegionId before) {
  if (node.sequence_nr() == kAccumulateGrad) {
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

void change_stretch(const Frame& frame, RegionId next) {
  std::lock_guard lock(frame.backward->mutex);
  const RegionId before = frame.backward->region;
  if (before == next) return;
  if (before) frame.regions->after_backward(before);
  frame.backward->region = next;
  if (next) frame.regions->before_backward(next);
}

template <class Call>
void for_each_listener(Call call) {
  for_each_frame([&](const Frame& frame) {
    if (frame.regions) frame.visit([&] { call(frame); });
  });
}

std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto node = ag::get_current_node();
  if (!node) return nullptr;
  const RegionId region = region_of(*node, current_region());
  set_current_region(region);
  // An accumulation is no stretch of its own: it runs between the nodes of whatever region made the gradient.
  if (node->sequence_nr() != kAccumulateGrad)
    for_each_listener([&](const Frame& frame) { change_stretch(frame, region); });
  return nullptr;
}

void after_node(const at::RecordFunction&, at::ObserverContext*) {
  const auto node = ag::get_current_node();
  if (!node || node->sequence_nr() != kAccumulateGrad) return;
  if (const auto* accumulate = dynamic_cast<const ag::AccumulateGrad*>(node.get()))
    for_each_listener([&](const Frame& frame) { frame.regions->gradient_ready(accumulate->variable); });
}

thread_local int watchers = 0;
thread_local at::CallbackHandle callback = 0;

}  // namespace

void begin_range(RegionId id) {
  const std::uint64_t first = at::sequence_number::peek();
  auto& table = ranges();
  std::lock_guard lock(table.mutex);
  auto& list = table.by_thread[at::RecordFunction::currentThreadId()];
  if (!list.empty() && list.back().region == id) return;
  if (!list.empty() && list.back().first == first) {
    list.back().region = id;
    return;
  }
  if (list.size() == kMostRanges) list.erase(list.begin(), list.begin() + kMostRanges / 2);
  list.push_back({first, id});
}

BackwardScope::BackwardScope() : outer_(current_region()) {
  for_each_listener([](const Frame& frame) {
    std::lock_guard lock(frame.backward->mutex);
    ++frame.backward->depth;
  });
}

BackwardScope::~BackwardScope() {
  for_each_listener([](const Frame& frame) {
    bool last = false;
    {
      std::lock_guard lock(frame.backward->mutex);
      last = --frame.backward->depth == 0;
    }
    if (last) change_stretch(frame, 0);
  });
  set_current_region(outer_);
  begin_range(outer_);  // a region opened by a hook in the backward went back to the backward's own
}

void watch_nodes() {
  if (watchers++ > 0) return;
  callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&before_node, &after_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

void unwatch_nodes() {
  if (--watchers == 0) at::removeCallback(callback);
}

}  // namespace snug::hooks
