#include "snug/hooks/backward_regions.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "snug/hooks/region_ranges.h"

namespace snug::hooks {

namespace ag = torch::autograd;

namespace {

using Backward = BackwardState::Backward;
using FramePtr = std::shared_ptr<const Frame>;

// A node that this thread is in; in a backward within another there are several.
struct NodeVisit final : at::ObserverContext {
  NodeVisit(std::int64_t backward, RegionId region);
  ~NodeVisit() override;
  std::int64_t backward;
  RegionId region;
  NodeVisit* outer;
};

// Without destructors: memory is freed, and asked whose it is, until a thread's very end.
thread_local NodeVisit* innermost_visit = nullptr;
thread_local RegionId of_forward = 0;
// The node that ran last, or runs: what autograd does until the next one counts there.
struct LastNode {
  std::int64_t backward = -1;
  RegionId region = 0;
};
thread_local LastNode last;

NodeVisit::NodeVisit(std::int64_t backward, RegionId region)
    : backward(backward), region(region), outer(std::exchange(innermost_visit, this)) {
  last = {backward, region};
}
NodeVisit::~NodeVisit() {
  innermost_visit = outer;
  if (last.backward != backward) last = {backward, region};  // there was a backward within
}

RegionId* region_at(std::int64_t place) noexcept {
  if (place < 0) return &of_forward;
  if (last.backward == place) return &last.region;
  for (NodeVisit* visit = innermost_visit; visit; visit = visit->outer)
    if (visit->backward == place) return &visit->region;
  return nullptr;
}

bool is_in_node_of(std::int64_t backward) {
  for (const NodeVisit* visit = innermost_visit; visit; visit = visit->outer)
    if (visit->backward == backward) return true;
  return false;
}

template <class Call>
void for_each_listener(Call call) {
  const std::shared_ptr<const Frames> frames = current_frames();
  if (!frames) return;
  for (auto frame = frames->rbegin(); frame != frames->rend(); ++frame)
    if ((*frame)->regions) call(*frame);
}

void keep_failure(BackwardState& state, std::int64_t number, std::exception_ptr failure) {
  std::lock_guard lock(state.mutex);
  Backward& backward = state.backwards[number];
  if (!std::exchange(backward.has_failed, true)) backward.failure = std::move(failure);
}

bool has_failed(BackwardState& state, std::int64_t number) {
  std::lock_guard lock(state.mutex);
  return state.backwards[number].has_failed;
}

template <class Call>
void tell(const Frame& frame, std::int64_t backward, Call call) {
  try {
    frame.visit([&] { call(*frame.regions); });
  } catch (...) {
    keep_failure(*frame.backward, backward, std::current_exception());
  }
}

// Of what is over. The first exception goes to `failure`, if there is none yet.
void end_stretches(const Frame& frame, const Backward& over, std::exception_ptr& failure) {
  for (const auto& stretch : over.stretches) {
    if (!stretch.region) continue;
    try {
      frame.visit([&] { frame.regions->after_backward(stretch.region); });
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
}

template <class Which>
std::vector<Backward> take(BackwardState& state, Which which) {
  std::vector<Backward> taken;
  std::lock_guard lock(state.mutex);
  for (auto entry = state.backwards.begin(); entry != state.backwards.end();) {
    const bool is_meant = which(entry->first, entry->second);
    if (is_meant) taken.push_back(std::move(entry->second));
    entry = is_meant ? state.backwards.erase(entry) : std::next(entry);
  }
  return taken;
}

void end_backward(const Frame& frame, std::int64_t number) {
  std::exception_ptr failure;
  for (const Backward& over : take(*frame.backward, [&](auto key, const auto&) { return key == number; })) {
    failure = over.failure;
    end_stretches(frame, over, failure);
  }
  if (failure) std::rethrow_exception(failure);
}

// Nothing unless this is the first node of a backward that the listener hears of.
void begin_backward(const FramePtr& frame, std::int64_t number) {
  BackwardState& state = *frame->backward;
  {
    std::lock_guard lock(state.mutex);
    if (!state.backwards.try_emplace(number).second) return;
  }
  ag::Engine::get_default_engine().queue_callback([frame, number] { end_backward(*frame, number); });
  const auto is_left = [&](std::int64_t key, const Backward& backward) {
    const bool was_here = std::ranges::count(backward.stretches, std::this_thread::get_id(),
                                             &BackwardState::Stretch::thread) > 0;
    return key != number && was_here && !is_in_node_of(key);
  };
  std::exception_ptr failure;
  for (const Backward& left : take(state, is_left)) end_stretches(*frame, left, failure);
  if (failure) keep_failure(state, number, failure);
  tell(*frame, number, [](RegionListener& told) { told.backward_begins(); });
}

RegionId& region_of_this_thread(Backward& backward) {
  const auto here = std::this_thread::get_id();
  const auto found = std::ranges::find(backward.stretches, here, &BackwardState::Stretch::thread);
  if (found != backward.stretches.end()) return found->region;
  return backward.stretches.emplace_back(BackwardState::Stretch{here, 0}).region;
}

void change_stretch(const Frame& frame, std::int64_t number, RegionId next) {
  BackwardState& state = *frame.backward;
  const auto enter = [&](RegionId region) {
    std::lock_guard lock(state.mutex);
    Backward& backward = state.backwards[number];
    return std::exchange(region_of_this_thread(backward), backward.has_failed ? 0 : region);
  };
  const RegionId before = enter(next);
  if (before == next) return;
  if (before) tell(frame, number, [&](RegionListener& told) { told.after_backward(before); });
  if (next && !has_failed(state, number))
    tell(frame, number, [&](RegionListener& told) { told.before_backward(next); });
  if (has_failed(state, number)) enter(0);
}

std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto node = ag::get_current_node();
  if (!node) return nullptr;
  const std::int64_t backward = ag::get_current_graph_task_id();
  const RegionId region = region_of(*node, current_region());
  auto visit = std::make_unique<NodeVisit>(backward, region);
  for_each_listener([&](const FramePtr& frame) {
    begin_backward(frame, backward);
    // An accumulation is no stretch of its own: it runs between the nodes of whatever region made the
    // gradient.
    if (!is_accumulation(*node)) change_stretch(*frame, backward, region);
  });
  return visit;
}

void after_node(const at::RecordFunction&, at::ObserverContext* visit) {
  const auto node = ag::get_current_node();
  if (!visit || !node || !is_accumulation(*node)) return;
  const auto* const accumulate = dynamic_cast<const ag::AccumulateGrad*>(node.get());
  if (!accumulate) return;
  const std::int64_t backward = static_cast<const NodeVisit*>(visit)->backward;
  for_each_listener([&](const FramePtr& frame) {
    if (!has_failed(*frame->backward, backward))
      tell(*frame, backward, [&](RegionListener& told) { told.gradient_ready(accumulate->variable); });
  });
}

thread_local int watchers = 0;
thread_local at::CallbackHandle callback = 0;

}  // namespace

RegionId current_region() noexcept {
  return *region_at(current_place());
}
std::int64_t current_place() noexcept {
  const std::int64_t backward = ag::get_current_graph_task_id();
  return region_at(backward) ? backward : -1;
}
void set_region(std::int64_t place, RegionId id) noexcept {
  if (RegionId* const region = region_at(place)) *region = id;
}

void end_left_overs() {
  if (ag::get_current_graph_task_id() >= 0) return;
  std::exception_ptr failure;
  for_each_listener([&](const FramePtr& frame) {
    for (const Backward& left : take(*frame->backward, [](auto, const auto&) { return true; }))
      end_stretches(*frame, left, failure);
  });
  if (failure) std::rethrow_exception(failure);
}

void throw_failure() {
  const std::int64_t here = ag::get_current_graph_task_id();
  if (here < 0) return;
  std::exception_ptr failure;
  for_each_listener([&](const FramePtr& frame) {
    std::lock_guard lock(frame->backward->mutex);
    for (auto& [number, backward] : frame->backward->backwards)
      if (number == here || is_in_node_of(number))
        if (std::exception_ptr one = std::exchange(backward.failure, nullptr); !failure) failure = one;
  });
  if (failure) std::rethrow_exception(failure);
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
