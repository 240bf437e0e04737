#include "snug/tape/forward_state.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>

#include <mutex>

#include "snug/tape/arguments.h"

namespace snug::tape {

namespace {

at::Tensor swap(at::Generator generator, const at::Tensor& state) {
  std::lock_guard lock(generator.mutex());
  at::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

AutocastState types() {
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA)};
}

void set_types(const AutocastState& state) {
  at::autocast::set_autocast_dtype(at::kCPU, state.cpu);
  at::autocast::set_autocast_dtype(at::kCUDA, state.cuda);
}

}  // namespace

std::optional<GeneratorState> GeneratorState::before(const torch::jit::Stack& arguments) {
  at::Generator generator;
  c10::Device device = c10::kCPU;
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) generator = argument.toGenerator();
    if (argument.isDevice()) device = argument.toDevice();
    each_tensor(argument, [&](const at::Tensor& tensor, int) {
      if (tensor.dim() > 0 || !tensor.is_cpu()) device = tensor.device();
    });
  }
  if (!generator.defined() && device.is_meta()) return std::nullopt;
  if (!generator.defined()) generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  return GeneratorState{generator, generator.get_state()};
}

bool GeneratorState::is_unchanged() const {
  at::Generator same = generator;
  std::lock_guard lock(same.mutex());
  return at::equal(state, same.get_state());
}

DrawAgain::DrawAgain(const std::optional<GeneratorState>& recorded) : recorded_(recorded) {
  if (recorded_) before_ = swap(recorded_->generator, recorded_->state);
}

DrawAgain::~DrawAgain() {
  if (recorded_) swap(recorded_->generator, before_);
}

std::optional<AutocastState> AutocastState::now() {
  if (!at::autocast::is_autocast_enabled(at::kCPU) && !at::autocast::is_autocast_enabled(at::kCUDA))
    return std::nullopt;
  return types();
}

SameAutocast::SameAutocast(const std::optional<AutocastState>& state) {
  if (!state) return;
  changed_ = true;
  before_ = types();
  cache_ = at::autocast::is_autocast_cache_enabled();
  set_types(*state);
  at::autocast::set_autocast_cache_enabled(false);
}

SameAutocast::~SameAutocast() {
  if (!changed_) return;
  set_types(before_);
  at::autocast::set_autocast_cache_enabled(cache_);
}

}  // namespace snug::tape
