#include "snug/session/state_park.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/trace/category.h"

namespace snug::session {

namespace {

using Part = std::vector<std::size_t>;

Part all_of(const AnyOptimizer& optimizer) {
  Part all(optimizer.parameters.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

// In bytes of parameters. Three parts are on the device: a small part of all states, unless copies would be
// too short for the link's rate.
std::vector<Part> parts_of(const AnyOptimizer& optimizer) {
  if (!optimizer.is_by_parameter) return {all_of(optimizer)};
  constexpr std::uint64_t kLeastBytes = 64_KiB, kMostBytes = 32_MiB, kParts = 24;
  Part updated = all_of(optimizer);
  std::erase_if(updated, [&](std::size_t i) { return !optimizer.parameters[i].grad().defined(); });
  std::uint64_t all_bytes = 0;
  for (const std::size_t i : updated) all_bytes += optimizer.parameters[i].nbytes();
  const std::uint64_t part_bytes = std::clamp(all_bytes / kParts, kLeastBytes, kMostBytes);
  std::vector<Part> parts{{}};
  std::uint64_t bytes = 0;
  for (const std::size_t i : updated) {
    if (bytes >= part_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(i);
    bytes += optimizer.parameters[i].nbytes();
  }
  return parts;
}

// Each is either here or where it belongs.
class HiddenGradients {
 public:
  explicit HiddenGradients(const std::vector<at::Tensor>& parameters)
      : parameters_(parameters), gradients_(parameters.size()) {
    for (std::size_t i = 0; i < gradients_.size(); ++i) hide(i);
  }
  ~HiddenGradients() {
    for (std::size_t i = 0; i < gradients_.size(); ++i) show(i);
  }
  HiddenGradients(const HiddenGradients&) = delete;  // it is a stretch of time
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  void show(std::size_t i) {
    if (gradients_[i].defined()) parameters_[i].mutable_grad() = std::exchange(gradients_[i], {});
  }
  void hide(std::size_t i) {
    if (parameters_[i].grad().defined()) gradients_[i] = std::exchange(parameters_[i].mutable_grad(), {});
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace

// On Meta nothing is there to be brought.
StatePark::~StatePark() {
  if (!store_) return;
  for (const auto& [tensor, moving] : parked_) moving->bring_back();
}

void StatePark::step(const AnyOptimizer& optimizer) {
  const auto claim = options_.tracker->claim(trace::Category::Optimizer);
  forget_gone();
  if (has_asked_ && !store_) return optimizer.step();
  step_by_parts(optimizer, parts_of(optimizer));
}

void StatePark::park(const AnyOptimizer& optimizer) {
  forget_gone();
  for (const Moving& moving : take_in_all(optimizer, all_of(optimizer))) moving->drop();
}

void StatePark::unpark(const AnyOptimizer& optimizer, ReadStates where) {
  for (const Moving& moving : parked(optimizer, all_of(optimizer)))
    where == ReadStates::OnDevice ? moving->use() : moving->show_host();
}

void StatePark::forget_gone() {
  std::erase_if(parked_, [&](const auto& entry) {
    if (entry.second->is_used()) return false;
    const std::uint64_t bytes = host::host_bytes(entry.second->host());
    bytes_ -= bytes;
    options_.streamed->bytes -= bytes;
    return true;
  });
}

void StatePark::step_by_parts(const AnyOptimizer& optimizer, const std::vector<Part>& parts) {
  HiddenGradients gradients(optimizer.parameters);
  std::vector<std::vector<Moving>> moving(parts.size());
  const auto fetch = [&](std::size_t part) {
    if (part == parts.size()) return;
    moving[part] = parked(optimizer, parts[part]);
    for (const Moving& state : moving[part]) state->fetch();
  };
  // Unless somebody else would see its memory go. Was it written to past its version, as through data(), then
  // it was sent.
  const auto leave = [&](const std::vector<Moving>& states) {
    for (const Moving& state : states)
      if (!state->has_alias()) state->drop();
  };
  try {
    fetch(0);
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (part >= 2) leave(moving[part - 2]);
      fetch(part + 1);
      for (const Moving& state : moving[part]) state->use();
      for (const std::size_t i : parts[part]) gradients.show(i);
      optimizer.step();
      for (const std::size_t i : parts[part]) gradients.hide(i);
      if (!std::ranges::all_of(moving[part], [](const Moving& state) { return state->is_used(); }))
        forget_gone();  // it was replaced
      moving[part] = take_in_all(optimizer, parts[part]);
      for (const Moving& state : moving[part]) state->send();
    }
  } catch (...) {
    for (const auto& states : moving) {
      for (const Moving& state : states) state->send();
      leave(states);
    }
    throw;
  }
  leave(take_in_all(optimizer, all_of(optimizer)));
}

StatePark::Moving StatePark::find(const at::Tensor& state) const {
  const auto found = parked_.find(state.unsafeGetTensorImpl());
  return found == parked_.end() ? nullptr : found->second;
}

std::vector<StatePark::Moving> StatePark::parked(const AnyOptimizer& optimizer, const Part& part) const {
  std::vector<Moving> all;
  for (const std::size_t i : part)
    for (const OptimizerState& state : optimizer.states(optimizer.parameters[i]))
      if (Moving moving = find(state.tensor)) all.push_back(std::move(moving));
  return all;
}

std::vector<StatePark::Moving> StatePark::take_in_all(const AnyOptimizer& optimizer, const Part& part) {
  std::vector<Moving> all;
  for (const std::size_t i : part)
    for (const OptimizerState& state : optimizer.states(optimizer.parameters[i]))
      if (Moving moving = take_in(state, i)) all.push_back(std::move(moving));
  return all;
}

bool StatePark::may_move(const at::Tensor& state) {
  const bool is_worth_it = state.defined() && state.layout() == at::kStrided && state.is_floating_point() &&
                           state.numel() >= host::kFewElements;
  if (!is_worth_it || !host::fills_its_storage(state) || state.storage().use_count() > 1) return false;
  if (state.is_meta()) return true;
  if (!std::exchange(has_asked_, true) && options_.open_store) store_ = options_.open_store();
  return store_ && store_->device() == state.device();
}

StatePark::Moving StatePark::take_in(const OptimizerState& state, std::size_t parameter) {
  if (Moving known = find(state.tensor)) return known;
  if (is_full_ || !may_move(state.tensor)) return nullptr;
  const at::Tensor& tensor = state.tensor;
  at::Tensor host;
  try {
    host = host::host_empty(store_, tensor.sizes(), tensor.scalar_type());
  } catch (const Error& error) {
    is_full_ = true;
    options_.say(concat(error.what(), "; states that find no room on the host stay on the device"));
    return nullptr;
  }
  const host::MovingTensorOptions options{
      .why_away =
          concat("the state \"", state.name, "\" of parameter ", parameter, " ", tensor.sizes(),
                 " is on the host between steps: step with Session::step(), which brings it; to read ",
                 "or save it, call Session::unpark() first."),
      .came = [this](const at::Tensor& came) {
        if (options_.tracker) options_.tracker->adopt(came, trace::Category::Optimizer);
      }};
  const std::uint64_t bytes = host::host_bytes(host);
  auto moving = std::make_shared<host::MovingTensor>(tensor, std::move(host),
                                                     store_ ? &store_->link() : nullptr, options);
  parked_[tensor.unsafeGetTensorImpl()] = moving;
  bytes_ += bytes;
  options_.streamed->bytes += bytes;
  return moving;
}

}  // namespace snug::session
