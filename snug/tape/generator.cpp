#include "snug/tape/generator.h"

#include <ATen/Context.h>
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

}  // namespace snug::tape
