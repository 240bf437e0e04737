#include "snug/tape/tape.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/parameter.h"
#include "snug/hooks/saved_tensors.h"
#include "snug/tape/checksum.h"
#include "snug/tape/operator_facts.h"
#include "snug/tape/quiet.h"
#include "snug/tape/record.h"
#include "snug/tape/saved_value.h"
#include "snug/tape/streams.h"

namespace snug::tape {

void Pass::add(const std::shared_ptr<Tape>& tape) {
  std::erase_if(tapes, [](const std::weak_ptr<Tape>& weak) { return weak.expired(); });
  tapes.push_back(tape);
}

Tape::Tape(hooks::RegionId region, std::uint64_t place, std::shared_ptr<const RecordingOptions> options,
           std::shared_ptr<const ModelStorages> model, std::shared_ptr<Figures> figures,
           std::shared_ptr<Pass> pass, bool is_captured)
    : region_(region),
      region_name_(hooks::region_name(region)),
      options_(std::move(options)),
      model_(std::move(model)),
      figures_(std::move(figures)),
      pass_(std::move(pass)),
      in_pass_(pass_->schedule.begin_forward()),
      is_captured_(is_captured) {
  const bool verify = options_->verify || options_->determinism_check == DeterminismCheck::Bits;
  if ((options_->prove || verify) && !options_->stand_ins)
    proof_.emplace(*this, Site::at(std::hash<std::string>()(region_name_) ^ place), options_->prove, verify);
  check(!is_captured_ || !proof_, "region \"", region_name_,
        "\" cannot be proven while a CUDA graph is captured: capture without a Recording, or with one that "
        "proves nothing");
  const bool is_sketch = figures_->sketch != nullptr;
  if (options_->describe || is_sketch) description_.emplace(region_name_, figures_, is_sketch);
}

Tape::~Tape() {
  pass_->schedule.forget(in_pass_);
  std::lock_guard lock(figures_->mutex);
  figures_->totals[region_name_] += totals_;
}

void Tape::record(hooks::OperatorCall& call, const Level& level) {
  const OperatorFacts& facts = facts_of(call.op);
  if (facts.is_view) return call.proceed();
  std::unique_lock lock(mutex_);
  values_.sweep();
  RecordedCall recorded(*this, call, facts, level);
  if (facts.changes_shape) {
    recorded.before_change_of_shape();
    lock.unlock();
    return call.proceed();
  }
  recorded.before();
  lock.unlock();  // the operator may wait for other threads, and they for the tape
  try {
    call.proceed();
  } catch (...) {
    lock.lock();
    recorded.after_failure();
    throw;
  }
  lock.lock();
  recorded.after();
}

// The end of a region may not throw: its backward does.
void Tape::end_forward() noexcept {
  std::lock_guard lock(mutex_);
  const auto do_part = [this](auto part) {
    try {
      part();
    } catch (const std::exception& error) {
      if (failure_.empty()) failure_ = error.what();
    }
  };
  do_part([this] {
    if (proof_) proof_->end(std::uncaught_exceptions() <= exceptions_);
  });
  do_part([this] { finish_forward(); });
}

void Tape::finish_forward() {
  if (proof_)
    for (const auto& [storage, value] : values_.alive())
      if (value->saves > 0 && value->fate != Fate::Keep)
        lent_.emplace_back(value, storage.getWeakStorageImpl());
  describe_end();
  values_.clear();  // from here on saved tensors own what is left
  if (description_) description_->end_forward();
  const std::uint64_t may_go = bytes_to_go();
  for (const std::weak_ptr<Value>& pinned : std::exchange(pinned_, {}))
    if (const ValuePtr value = pinned.lock()) send_or_keep(value, may_go);
  pass_->schedule.end_forward(in_pass_);
}

// What autograd did not make and somebody has, a frozen weight, a table, a batch, does not leave.
bool Tape::is_to_go(const Value& value) const {
  if (value.fate != Fate::Offload || !value.is_kept() || !value.away() || value.bytes == 0) return false;
  return !value.is_leaf || value.storage().unique();
}

// A sketch says so of every such value: fates that it does not have may ask for it.
void Tape::describe_end() {
  if (!description_ || !description_->is_sketch()) return;
  for (const auto& [storage, value] : values_.alive()) {
    const std::size_t ours = value->is_kept() && value->storage().is_alias_of(storage) ? 2 : 1;
    if (value->is_leaf && storage.use_count() > ours) description_->set_held(*value);
  }
}

std::uint64_t Tape::bytes_to_go() const {
  std::uint64_t bytes = 0;
  for (const std::weak_ptr<Value>& pinned : pinned_)
    if (const ValuePtr value = pinned.lock(); value && is_to_go(*value)) bytes += value->away()->bytes();
  const auto share = static_cast<std::uint64_t>(options_->offload.share * static_cast<double>(bytes));
  const std::uint64_t limit = options_->offload.bytes;
  return std::min(share, limit - std::min(limit, pass_->schedule.sent_bytes()));
}

void Tape::send_or_keep(const ValuePtr& pinned, std::uint64_t may_go) {
  Value& value = *pinned;
  if (is_to_go(value) && totals_.offloaded_bytes + value.away()->bytes() <= may_go) {
    value.refuse(pass_->schedule.send(in_pass_, as_item(shared_from_this(), pinned)));
    if (value.refused().empty()) {
      if (value.checksum && value.away()->bytes() < value.bytes)
        value.checksum = value.away()->checksum(value.storage());
      ++totals_.offloaded_values;
      totals_.offloaded_bytes += value.away()->bytes();
      return;
    }
  }
  ++totals_.kept_values;
  totals_.kept_bytes += value.bytes;
  if (value.refused().empty()) return;
  auto& refused = totals_.refused[{value.refused_operation(), value.refused()}];
  ++refused.values;
  refused.bytes += value.bytes;
}

bool Tape::has_begun_backward() {
  std::lock_guard lock(mutex_);
  return replay_.has_begun();
}

ValuePtr Tape::value_of(const at::Tensor& tensor) {
  if (ValuePtr known = values_.find(tensor)) return known;
  const ValuePtr before = values_.current(tensor);
  auto value = std::make_shared<Value>(tensor.device(), tensor.storage().nbytes(), made_stream(tensor));
  value->is_external = true;
  value->is_leaf = !tensor.grad_fn();
  value->watch(tensor);
  const bool parameter = is_of_the_model(tensor);
  const std::uint32_t number = parameter ? 0 : inputs_++;
  value->origin.output = number;
  enroll(*value, Origin::kInput - number);
  if (!parameter && !(proof_ && proof_->is_suspect(*value))) value->fate = fate_of_input(tensor, number);
  const bool has_moved = before && before->fate == Fate::Recompute;  // its version has
  if (has_moved) value->refuse(Proof::kChanged, before->origin.schema);
  if (description_) description_->add(*value, tensor, parameter);
  values_.bind(tensor, value);
  return value;
}

// Where it is on the tape, whatever comes after.
void Tape::enroll(Value& value, std::uint32_t output) {
  value.origin.serial = serial_++;
  if (proof_) value.origin.name = proof_->name(output);
}

// Frozen weights are told by the region that they are bound to, or by whoever gave the model.
bool Tape::is_of_the_model(const at::Tensor& tensor) const {
  if (hooks::is_parameter(tensor)) return true;
  if (model_ && model_->contains(tensor.storage().unsafeGetStorageImpl())) return true;
  return !tensor.grad_fn() &&
         hooks::region_of_parameter(tensor.is_view() ? at::Tensor(tensor._base()) : tensor) != 0;
}

// What came into the region is kept or offloaded; nobody can recompute it.
Fate Tape::fate_of_input(const at::Tensor& tensor, std::uint32_t number) const {
  if (!level_) return Fate::Keep;
  const Fate fate = (*level_->fates)({.region = level_->region,
                                      .outermost = region_name_,
                                      .operation = "",
                                      .ordinal = ValueInfo::kInput,
                                      .output = number,
                                      .bytes = tensor.storage().nbytes(),
                                      .pass = level_->pass});
  return fate == Fate::Offload ? fate : Fate::Keep;
}

// A saved tensor or a recorded operation needs the value in the backward: its contents must be there or be
// made.
void Tape::pin(const ValuePtr& pinned, const at::Tensor& tensor) {
  Value& value = *pinned;
  const bool parameter = is_of_the_model(tensor);
  if (parameter) note_parameter(tensor);
  if (value.is_undefined || value.is_constant) keep_what_nobody_wrote(value);
  if (value.fate == Fate::Recompute || options_->stand_ins) return;
  const bool is_first = value.where() == Value::Where::Unheld;
  if (is_first) value.keep(tensor.storage());
  if (value.fate == Fate::Offload && !parameter) {
    check(!is_captured_, "region \"", region_name_,
          "\" cannot be offloaded while a CUDA graph is captured: only what is kept or recomputed can");
    if (!value.away()) value.may_go(on_the_host(options_->host));
    value.away()->needs(tensor);
  }
  if (!is_first) return;
  if (!value.is_watched()) value.watch(tensor);
  if (parameter) return;
  hooks::tell_saved(tensor);
  pinned_.push_back(pinned);
  if (pinned_.size() >= prune_at_) {
    std::erase_if(pinned_, [](const std::weak_ptr<Value>& weak) { return weak.expired(); });
    prune_at_ = std::max<std::size_t>(64, 2 * pinned_.size());
  }
}

// It is read, and no operator wrote it since empty() or zeros() made it.
void Tape::keep_what_nobody_wrote(Value& value) {
  value.cannot_be_recomputed();
  if (value.fate == Fate::Recompute) {
    value.fate = Fate::Keep;
    value.refuse(value.is_undefined ? "filled through its pointer" : "a constant, perhaps filled by hand",
                 value.origin.schema);
  }
  if (description_) description_->set_kept(value);
  value.is_undefined = value.is_constant = false;
}

void Tape::note_parameter(const at::Tensor& tensor) {
  const at::Tensor parameter = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  if (parameters_noted_.insert(parameter.unsafeGetTensorImpl()).second) parameters_.push_back(parameter);
}

// Contents that a recorded operation relies on are about to change: it gets a copy.
void Tape::before_write(const at::Tensor& tensor) {
  if (!values_.knows(tensor)) return;
  const ValuePtr value = values_.find(tensor);
  if (!value || !value->is_kept() || value->readers == 0) return;
  Quiet work_of_our_own;
  value->keep_a_copy();
}

// A saved tensor is an alias: it sees later writes (rrelu saves its noise before it fills it). One that moves
// the version is refused when the tensor is asked for.
void Tape::follow(const ValuePtr& old, const ValuePtr& now, const at::Tensor& tensor) {
  for (SavedValue* saved : saved_) {
    if (saved->value() != old) continue;
    saved->move_to(now);
    pin(now, saved->on(tensor.storage()));
    if (now->is_kept()) now->watch_write(tensor);
  }
}

// What was to be recomputed may have been written since by someone who does not tell: whoever reads it from
// here on, and saved tensors, which are aliases, have it as it is. It keeps its place on the tape, so that
// the structure is the same for all fates.
void Tape::came_in(const c10::Storage& storage, const ValuePtr& old, const std::string& why) {
  if (old->is_external || old->is_undefined) return;
  if (description_) description_->set_kept(*old);
  if (old->fate != Fate::Recompute) return;
  const at::Tensor whole = bytes_of(storage);
  if (old->is_watched()) whole.unsafeGetTensorImpl()->set_version_counter(old->counter());
  if (proof_) proof_->last(old);
  const auto now = std::make_shared<Value>(old->device, old->bytes, old->made_stream);
  now->is_external = true;
  now->origin = old->origin;
  now->refuse(why, old->origin.schema);
  now->watch(whole);
  values_.bind(whole, now);
  is_not_dropped(*old);
  const auto saved = saved_;  // moving one changes nothing but its value
  for (SavedValue* some : saved) {
    if (some->value() != old) continue;
    some->move_to(now);
    pin(now, whole);
  }
}

void Tape::distrust_all() {
  for (const auto& [storage, value] : values_.alive())
    came_in(storage, value, "the region ran other operators than before");
}

// The forward goes on where nobody has been: who knows what is written there, and into what. What can still
// be kept of the regions before is.
void Tape::distrust_previous() {
  for (const std::weak_ptr<Tape>& weak : pass_->tapes | std::views::reverse)
    if (const std::shared_ptr<Tape> tape = weak.lock(); tape && tape.get() != this)
      tape->keep_what_others_hold();
}

void Tape::keep_what_others_hold() {
  std::lock_guard lock(mutex_);
  for (const auto& [weak, storage] : std::exchange(lent_, {})) {
    const ValuePtr value = weak.lock();
    auto alive = storage.lock();
    if (!value || !alive || value->fate == Fate::Keep) continue;
    if (value->fate == Fate::Recompute) {
      keep_after_all(value, c10::Storage(std::move(alive)), "");
      continue;
    }
    if (proof_ && proof_->asks_before_it_leaves(*value)) continue;
    value->fate = Fate::Keep;
    value->stay(c10::Storage(std::move(alive)));
    if (value->checksum) value->checksum = checksum(value->storage());
  }
}

std::string Tape::enter_function(const std::string& name, at::TensorList inputs) {
  std::lock_guard lock(mutex_);
  std::string outer =
      std::exchange(function_, "given to or made in " + name + ", which may write past the dispatcher");
  for (const at::Tensor& input : inputs)
    if (is_plain(input))
      if (const ValuePtr value = values_.current(input)) came_in(input.storage(), value, function_);
  return outer;
}

void Tape::leave_function(std::string outer) {
  std::lock_guard lock(mutex_);
  function_ = std::move(outer);
}

void Tape::keep_after_all(const ValuePtr& kept, const c10::Storage& contents, const std::string& why) {
  Value& value = *kept;
  is_not_dropped(value);
  value.fate = Fate::Keep;
  value.cannot_be_recomputed();
  if (!why.empty()) value.refuse(why, value.origin.schema);
  if (description_) description_->set_fate(value);
  if (description_ && !why.empty()) description_->set_kept(value);
  if (!contents) return;
  value.keep(contents);
  hooks::tell_saved(bytes_of(contents));
  pinned_.push_back(kept);
}

void Tape::is_not_dropped(const Value& value) {
  if (value.saves == 0) return;
  --totals_.dropped_values;
  totals_.dropped_bytes -= value.bytes;
}

std::string Tape::told(const Value& value) const {
  if (!value.origin.schema) return concat("input ", value.origin.output, " of region \"", region_name_, "\"");
  return concat("the result of ", name_of(value.origin.schema), " (operation ", value.origin.operation,
                ") in region \"", region_name_, "\"");
}

void Tape::note_difference(const std::string& what) {
  ++totals_.differing;
  if (options_->determinism_check == DeterminismCheck::Bits && failure_.empty()) failure_ = what;
}

void Tape::compare(const Value& value, const c10::Storage& storage) {
  if (!value.checksum) return;
  ++totals_.checked;
  if (*value.checksum == (value.is_moved() ? value.away()->checksum(storage) : checksum(storage))) return;
  ++totals_.differing;
  TORCH_CHECK(options_->determinism_check != DeterminismCheck::Bits, told(value),
              " has other bits in the backward than it had in the forward");
}

void Tape::before_unpack() {
  if (proof_) proof_->before_unpack(replay_.is_in_backward());
  TORCH_CHECK(failure_.empty(), failure_);
  if (proof_) proof_->look_at_given();
  replay_.begin_backward();
  if (replay_.is_first_unpack()) pass_->schedule.begin_backward(in_pass_);
}

void Tape::after_unpack(Value& value, const at::Tensor& tensor) {
  hooks::tell_unpacked(tensor);
  if (value.is_kept())
    compare(value, value.storage());
  else if (value.is_moved())
    compare(value, tensor.storage());
  if (description_ && replay_.is_first_backward()) description_->add_unpack(value);
}

}  // namespace snug::tape
