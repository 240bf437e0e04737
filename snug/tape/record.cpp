#include "snug/tape/record.h"

#include <algorithm>
#include <utility>

#include "snug/base/error.h"
#include "snug/tape/arguments.h"
#include "snug/tape/streams.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

// What stands in place of a list: its length, negative if its tensors are optional.
c10::IValue list_hole(const c10::IValue& list) {
  const auto length = static_cast<std::int64_t>(list.toListRef().size());
  return list.isTensorList() ? length : -length;
}

std::size_t count_flat(const c10::IValue& result) {
  return result.isList() ? result.toListRef().size() : 1;
}

bool is_number(const at::Tensor& tensor, int place) {
  return place < 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number();  // stays the constant it is
}

}  // namespace

RecordedCall::RecordedCall(Tape& tape, hooks::OperatorCall& call, const OperatorFacts& facts,
                           const Level& level)
    : tape_(tape),
      call_(call),
      facts_(facts),
      level_(level),
      first_(call.stack.size() - facts.writes.size()),
      arguments_(call.stack.begin() + static_cast<std::ptrdiff_t>(first_), call.stack.end()),
      why_not_(facts.unreplayable),
      replayable_(facts.unreplayable.empty()) {}

void RecordedCall::before() {
  take_hidden_writes();
  look_at_arguments();
  if (tape_.proof() && goes_another_way()) {
    tape_.distrust_all();
    look_at_arguments();
  }
  if (tape_.proof()) prove_reads();
  if (facts_.is_random && can_replay() && level_.record_generators) {
    check(!tape_.is_captured(), "region \"", tape_.region_name(), "\" draws random numbers (", facts_.name,
          "): that cannot be recorded while a CUDA graph is captured");
    generator_ = GeneratorState::before(arguments_);
  }
}

void RecordedCall::before_change_of_shape() {
  for (std::size_t k = 0; k < arguments_.size(); ++k)
    each_tensor(arguments_[k], [&](const at::Tensor& tensor, int) {
      if (!facts_.writes[k] || !is_plain(tensor)) return;
      tape_.before_write(tensor);
      const ValuePtr value = tape_.values().find(tensor);
      if (value && value->is_watched()) value->watch_write(tensor);
    });
}

void RecordedCall::after_failure() {
  for (const Write& write : writes_) {
    tape_.values().forget(write.tensor);
    if (write.old->saves > 0) tape_.follow(write.old, tape_.value_of(write.tensor), write.tensor);
  }
  for (const at::Tensor& statistics : hidden_) tape_.values().forget(statistics);
}

void RecordedCall::after() {
  if (generator_ && generator_->is_unchanged()) generator_.reset();  // flash attention without dropout
  ordinal_ = tape_.next_operation();
  make_results();
  make_written();
  if (tape_.proof() && tape_.proof()->is_on()) prove_results();
  if (tape_.description()) describe();
  if (wants_replay()) keep_operation();
  for (Write& write : writes_) {
    const ValuePtr old = tape_.values().current(write.tensor);
    tape_.values().bind(write.tensor, write.value);
    if (old && old->saves > 0) tape_.follow(old, write.value, write.tensor);
  }
  for (const at::Tensor& statistics : hidden_) tape_.values().forget(statistics);
}

void RecordedCall::refuse(const std::string& why) {
  if (can_replay()) why_not_ = why;
}

void RecordedCall::refuse_always(const std::string& why) {
  refuse(why);
  replayable_ = false;
}

bool RecordedCall::is_set(int position) const {
  return position >= 0 && arguments_[static_cast<std::size_t>(position)].isBool() &&
         arguments_[static_cast<std::size_t>(position)].toBool();
}

void RecordedCall::take_hidden_writes() {
  if (facts_.hidden_writes.empty() || !tape_.options().spare_statistics) return;
  if (facts_.training >= 0 && !arguments_[static_cast<std::size_t>(facts_.training)].toBool()) return;
  for (const int position : facts_.hidden_writes) {
    c10::IValue& argument = arguments_[static_cast<std::size_t>(position)];
    if (argument.isTensor() && argument.toTensor().defined()) {
      hidden_.push_back(argument.toTensor());
      tape_.before_write(hidden_.back());
      tape_.value_of(hidden_.back())->is_scratch = true;  // saved before it moves, and not read afterwards
    }
    argument = c10::IValue();
  }
}

// Writes first: those must not take a reader of this very call for one that needs the old contents.
void RecordedCall::look_at_arguments() {
  writes_.clear();
  reads_.clear();
  for (std::size_t k = 0; k < arguments_.size(); ++k)
    each_tensor(arguments_[k], [&](const at::Tensor& tensor, int place) {
      if (!is_plain(tensor)) return refuse_always("an argument is not a plain dense tensor");
      if (tensor.is_cuda() && is_set(facts_.non_blocking))
        refuse_always("a non_blocking copy, which a replay does not wait for");
      if (facts_.writes[k]) look_at_write(tensor, k, place);
    });
  if (facts_.reads_shape_only) return;
  for (std::size_t k = 0; k < arguments_.size(); ++k)
    each_tensor(arguments_[k], [&](const at::Tensor& tensor, int place) {
      if (facts_.writes[k] || !is_plain(tensor) || is_number(tensor, place)) return;
      reads_.push_back({k, place, &tensor.storage(), tape_.value_of(tensor)});
    });
}

void RecordedCall::look_at_write(const at::Tensor& tensor, std::size_t position, int place) {
  tape_.before_write(tensor);
  const ValuePtr old = tape_.value_of(tensor);
  const bool covers_all =
      (tensor.nbytes() == tensor.storage().nbytes() && tensor.is_non_overlapping_and_dense()) ||
      tensor.storage().nbytes() == 0;
  const bool is_read = old->is_undefined  ? !(facts_.overwrites && covers_all)
                       : old->is_constant ? !facts_.overwrites && !facts_.sets_parts
                                          : false;
  if (is_read) tape_.pin(old, tensor);
  if (!old->can_be_recomputed()) refuse("writes into what cannot be recomputed");
  writes_.push_back({position, place, tensor, Geometry(tensor), old, nullptr});
}

bool RecordedCall::goes_another_way() {
  std::uint64_t what = reinterpret_cast<std::uintptr_t>(&call_.op.schema());
  const auto mix = [&](std::uint32_t serial) { what = what * 0x100000001B3ull + serial + 1; };
  for (const Read& read : reads_) mix(read.value->origin.serial);
  for (const Write& write : writes_) mix(write.old->origin.serial);
  return tape_.proof()->goes_on(what);
}

void RecordedCall::prove_reads() {
  Proof& proof = *tape_.proof();
  for (Read& read : reads_) read.sum = proof.read(read.value, *read.storage);
  for (Write& write : writes_) {
    if (write.old->is_undefined) continue;
    write.sum = proof.read(write.old, write.tensor.storage());
    proof.last(write.old);
  }
}

void RecordedCall::prove_results() {
  std::vector<ValuePtr> made;
  for (const Result& result : results_) made.push_back(result.value);
  for (const Write& write : writes_) made.push_back(write.value);
  for (const Read& read : reads_) tape_.proof()->made_of(read.value, read.sum, made);
  for (const Write& write : writes_) tape_.proof()->made_of(write.old, write.sum, made);
}

ValuePtr RecordedCall::make_value(std::size_t output, const at::Tensor& tensor) {
  const c10::Device device = tensor.device();
  const auto value = std::make_shared<Value>(device, tensor.storage().nbytes(), current_stream(device));
  value->origin.operation = ordinal_;
  value->origin.output = static_cast<std::uint32_t>(output);
  value->origin.schema = &call_.op.schema();
  tape_.enroll(*value, value->origin.output);
  value->is_undefined = facts_.makes_undefined;
  value->is_constant = facts_.makes_constant;
  value->is_scratch = static_cast<int>(output) == facts_.scratch_output;
  choose_fate(*value);
  if (tape_.proof() && !value->is_undefined) tape_.proof()->made(value, tensor.storage());
  if (tape_.description()) tape_.description()->add(*value, tensor, /*is_parameter=*/false);
  return value;
}

void RecordedCall::choose_fate(Value& value) {
  value.fate = facts_.makes_undefined ? Fate::Recompute
                                      : (*level_.fates)({.region = level_.region,
                                                         .outermost = tape_.region_name(),
                                                         .operation = facts_.name,
                                                         .ordinal = ordinal_,
                                                         .output = value.origin.output,
                                                         .bytes = value.bytes,
                                                         .pass = level_.pass});
  if (!tape_.function().empty()) refuse_always(tape_.function());
  const bool is_suspect = tape_.proof() && tape_.proof()->is_suspect(value);
  if (is_suspect) replayable_ = false;
  if (is_suspect ? value.fate == Fate::Keep : value.fate != Fate::Recompute || can_replay()) return;
  value.fate = Fate::Keep;
  value.refuse(is_suspect ? Proof::kChanged : why_not_, &call_.op.schema());
}

// Storages that were not there before. What aliases something known is no new value, whatever the schema
// says.
void RecordedCall::make_results() {
  std::size_t flat = 0;
  for (std::size_t k = first_; k < call_.stack.size(); ++k) {
    each_tensor(call_.stack[k], [&](const at::Tensor& tensor, int place) {
      if (!is_plain(tensor) || tape_.values().knows(tensor) || aliases_an_argument(tensor)) return;
      const std::size_t output = flat + static_cast<std::size_t>(std::max(place, 0));
      results_.push_back({output, make_value(output, tensor)});
      results_.back().value->watch(tensor);
      tape_.values().bind(tensor, results_.back().value);
    });
    flat += count_flat(call_.stack[k]);
  }
}

bool RecordedCall::aliases_an_argument(const at::Tensor& tensor) const {
  bool found = false;
  for (const c10::IValue& argument : arguments_)
    each_tensor(argument, [&](const at::Tensor& other, int) {
      found |= other.has_storage() && other.storage().is_alias_of(tensor.storage());
    });
  return found;
}

// Known storages with new contents.
void RecordedCall::make_written() {
  for (Write& write : writes_) {
    write.value = make_value(written_output(write), write.tensor);
    write.value->watch_write(write.tensor);
    if (can_replay() || !(write.old->is_external || facts_.resizes)) continue;
    write.value->is_external = true;
    write.value->fate = Fate::Keep;
  }
}

std::size_t RecordedCall::written_output(const Write& write) {
  constexpr std::size_t kFirstWritten = 1000;  // beyond any result; a stretch for each place in a list
  return kFirstWritten * static_cast<std::size_t>(write.place + 2) + write.position;
}

bool RecordedCall::wants_replay() const {
  const auto is_wanted = [](const auto& made) { return made.value->fate == Fate::Recompute; };
  return std::ranges::any_of(results_, is_wanted) || std::ranges::any_of(writes_, is_wanted);
}

void RecordedCall::keep_operation() {
  auto operation = std::make_shared<Operation>(call_.op);
  operation->keys = call_.keys;
  operation->grad_mode = at::GradMode::is_enabled();
  operation->generator = std::move(generator_);
  for (std::size_t k = 0; k < arguments_.size(); ++k) keep_argument(*operation, k);
  operation->constants = std::move(arguments_);
  for (const Result& result : results_) {
    operation->outputs.emplace_back(result.place, result.value);
    if (result.value->fate == Fate::Recompute) result.value->made_by(operation);
  }
  for (const Write& write : writes_)
    if (write.value->fate == Fate::Recompute) write.value->made_by(operation);
  ++tape_.totals().operations;
}

void RecordedCall::keep_argument(Operation& operation, std::size_t position) {
  bool has_tensors = false;
  each_tensor(arguments_[position], [&](const at::Tensor& tensor, int place) {
    if (is_number(tensor, place)) return;
    has_tensors = true;
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    Operation::Argument argument{.position = static_cast<std::uint32_t>(position),
                                 .place = place,
                                 .value = {},
                                 .geometry = Geometry(tensor),
                                 .device = tensor.device(),
                                 .is_written = facts_.writes[position],
                                 .counter = counter,
                                 .version = counter.current_version(),
                                 .after = {}};
    if (argument.is_written) {
      const Write& write = written(position, place);
      argument.value = OperationsValue(write.old);
      argument.geometry = write.before;
      argument.after = write.value;
    } else if (!facts_.reads_shape_only) {
      argument.value = OperationsValue(read(position, place).value);
      tape_.pin(argument.value.pointer(), tensor);
    }
    if (argument.value) operation.reads(*argument.value);
    operation.arguments.push_back(std::move(argument));
  });
  if (!has_tensors) return;
  c10::IValue& hole = arguments_[position];
  hole = hole.isTensor() ? c10::IValue() : list_hole(hole);
}

const RecordedCall::Write& RecordedCall::written(std::size_t position, int place) const {
  for (const Write& write : writes_)
    if (write.position == position && write.place == place) return write;
  throw InternalError("bug in snug: a written argument was not noted");
}

const RecordedCall::Read& RecordedCall::read(std::size_t position, int place) const {
  for (const Read& read : reads_)
    if (read.position == position && read.place == place) return read;
  throw InternalError("bug in snug: an argument was not noted");
}

void RecordedCall::describe() {
  trace::TapeOperation operation{.name = facts_.name, .replayable = replayable_};
  for (const Read& read : reads_) operation.reads.push_back(read.value->origin.number);
  for (const Result& result : results_) {
    operation.results.push_back(result.value->origin.number);
    tape_.description()->set_fate(*result.value);
  }
  for (const Write& write : writes_) {
    operation.writes.push_back({write.old->origin.number, write.value->origin.number});
    tape_.description()->set_fate(*write.value);
  }
  tape_.description()->add(std::move(operation));
}

}  // namespace snug::tape
