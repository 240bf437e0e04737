#include "snug/tape/replay.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "snug/base/error.h"
#include "snug/tape/figures.h"
#include "snug/tape/operator_facts.h"
#include "snug/tape/saved_value.h"
#include "snug/tape/streams.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace ag = torch::autograd;

namespace {

// Fills the hole of a list on its first tensor.
void open_list(c10::IValue& hole) {
  if (!hole.isInt()) return;
  const std::int64_t length = hole.toInt();
  if (length >= 0) {
    c10::List<at::Tensor> list;
    list.resize(static_cast<std::size_t>(length));
    hole = c10::IValue(std::move(list));
  } else {
    c10::List<std::optional<at::Tensor>> list;
    list.resize(static_cast<std::size_t>(-length));
    hole = c10::IValue(std::move(list));
  }
}

void put(c10::IValue& hole, int place, const at::Tensor& tensor) {
  if (place < 0) {
    hole = tensor;
    return;
  }
  open_list(hole);
  hole.toList().set(static_cast<std::size_t>(place), tensor);
}

std::vector<at::Tensor> flattened(const torch::jit::Stack& results) {
  std::vector<at::Tensor> flat;
  for (const c10::IValue& result : results) {
    if (!result.isList()) {
      flat.push_back(result.isTensor() ? result.toTensor() : at::Tensor());
      continue;
    }
    for (const c10::IValue& element : result.toListRef())
      flat.push_back(element.isTensor() ? element.toTensor() : at::Tensor());
  }
  return flat;
}

}  // namespace

void Replay::begin_backward() {
  const std::int64_t backward = ag::get_current_graph_task_id();
  if (backward == backward_ || backward < 0) return;
  end_backward();  // left over if the last one threw
  backward_ = backward;
  ++backwards_;
  for (SavedValue* saved : tape_.saved()) saved->arm(*this);
  ag::Engine::get_default_engine().queue_callback([tape = tape_.weak_from_this(), backward] {
    const auto alive = tape.lock();
    if (!alive) return;
    std::lock_guard lock(alive->mutex());
    if (alive->replay().backward_ == backward) alive->replay().end_backward();
  });
}

bool Replay::is_in_backward() const {
  return backward_ >= 0 && backward_ == ag::get_current_graph_task_id();
}

void Replay::end_backward() {
  backward_ = -1;
  announced_ = has_unpacked_ = false;
  if (tape_.proof()) tape_.proof()->look_at_given();
  for (SavedValue* saved : tape_.saved()) saved->disarm(*this);
}

bool Replay::is_first_unpack() {
  return !std::exchange(has_unpacked_, true);
}

c10::Storage Replay::contents(Value& value) {
  if (!value.here) {
    announce();
    const bool is_timed = tape_.options().time_replays && !tape_.is_captured();
    const ReplayClock clock(tape_.figures(), tape_.region_name(), value.device, is_timed);
    require(value);
  }
  return fetch(value);
}

// Parameters may be elsewhere (on the host, on another rank) until someone says that they are needed.
void Replay::announce() {
  if (std::exchange(announced_, true)) return;
  hooks::announce_replay(tape_.region(), tape_.parameters());
}

// A replay runs on the stream of the node that asks; it waits for what was made on another.
const c10::Storage& Replay::fetch(Value& value) {
  if (value.where() == Value::Where::Away) value.bring_back();  // asked for again after its last use
  TORCH_CHECK(value.is_kept() || value.counter_in_backward().current_version() == 0,
              "a node of the backward wrote into a tensor that it was given, and region \"",
              tape_.region_name(), "\" needs it again");
  return value.ready();
}

void Replay::run(trace::ClosureOperation& closure_operation) {
  auto& operation = static_cast<Operation&>(closure_operation);
  const std::vector<Written> written = take_written(operation);
  torch::jit::Stack stack = arguments(operation, written);
  {
    // The same kernel under the same state of the dispatcher as in the forward.
    DrawAgain same_numbers(operation.generator);
    c10::impl::ForceDispatchKeyGuard keys(operation.thread_keys);
    at::AutoGradMode grad_mode(operation.grad_mode);
    SameAutocast autocast(operation.autocast);
    hooks::run_operator(operation.handle, operation.keys, stack);
  }
  ++tape_.totals().replays;
  keep_results(operation, stack, written);
}

// Writes go to a recomputed storage that nobody else needs, else to a copy.
std::vector<Replay::Written> Replay::take_written(const Operation& operation) {
  std::vector<Written> written;
  for (const auto& argument : operation.arguments) {
    if (!argument.is_written) continue;
    Value* before = argument.value.get();
    if (std::ranges::find(written, before, &Written::before) != written.end()) continue;
    const c10::Storage& storage = fetch(*before);
    const bool is_ours = before->where() == Value::Where::Recomputed && before->uses == 1 &&
                         storage.unique();  // no tensor is on it
    written.push_back({before, is_ours ? before->take() : copy_of(storage)});
  }
  return written;
}

torch::jit::Stack Replay::arguments(const Operation& operation, const std::vector<Written>& written) {
  torch::jit::Stack stack = operation.constants;
  for (const auto& argument : operation.arguments) {
    const auto ours = std::ranges::find(written, argument.value.get(), &Written::before);
    if (argument.value && argument.value->is_kept())
      tape_.compare(*argument.value, argument.value->storage());
    if (ours == written.end() && argument.value) check_unchanged(operation, argument);
    const c10::Storage storage = ours != written.end() ? ours->storage
                                 : argument.value      ? fetch(*argument.value)
                                                       : no_storage(argument.device);
    if (argument.value && tape_.proof()) tape_.proof()->check_operand(operation, *argument.value);
    at::Tensor tensor = argument.geometry.on(storage);
    if (argument.geometry.requires_grad) tensor.unsafeGetTensorImpl()->set_requires_grad(true);
    put(stack[argument.position], argument.place, tensor);
  }
  return stack;
}

// By the counter of the very tensor that the operation read: one storage may have several.
void Replay::check_unchanged(const Operation& operation, const Operation::Argument& argument) const {
  TORCH_CHECK(
      !argument.value->is_alias() || argument.counter.current_version() == argument.version,
      "one of the variables needed for gradient computation has been modified by an inplace operation: an "
      "argument of ",
      facts_of(operation.handle).name, ", which region \"", tape_.region_name(),
      "\" has to run again, is at version ", argument.counter.current_version(), "; expected version ",
      argument.version, " instead");
}

void Replay::keep_results(Operation& operation, const torch::jit::Stack& results,
                          const std::vector<Written>& written) {
  const bool checks_sizes = tape_.options().determinism_check != DeterminismCheck::None;
  const auto keep = [&](const std::weak_ptr<Value>& weak, const c10::Storage& storage) {
    const ValuePtr value = weak.lock();
    if (!value) return;
    const std::string& name = facts_of(operation.handle).name;
    TORCH_CHECK(!checks_sizes || storage.nbytes() == value->bytes, name, " in region \"", tape_.region_name(),
                "\" made ", value->bytes, " bytes in the forward and ", storage.nbytes(),
                " when it was run again: it is not deterministic");
    tape_.compare(*value, storage);
    if (value->uses == 0 || value->here) return;
    value->recomputed(storage);
  };
  const std::vector<at::Tensor> flat = flattened(results);
  for (const auto& [place, value] : operation.outputs) keep(value, flat[place].storage());
  for (const auto& argument : operation.arguments) {
    if (!argument.is_written) continue;
    keep(argument.after, std::ranges::find(written, argument.value.get(), &Written::before)->storage);
  }
}

void Replay::last_use(trace::ClosureValue& value) {
  static_cast<Value&>(value).last_use();
}

}  // namespace snug::tape
