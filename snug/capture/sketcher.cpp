#include "snug/capture/sketcher.h"

#include <algorithm>
#include <utility>

#include "snug/base/error.h"
#include "snug/capture/operator_work.h"
#include "snug/capture/sketched_moments.h"
#include "snug/trace/closure.h"

namespace snug::capture {

using trace::Moment;
using trace::Sketch;

namespace {

// Of this thread.
thread_local bool is_unpacking = false;
thread_local std::uint32_t last_operator = 0;  // in Sketch::operators

// What came into a region and is kept for its backward, and was gone when the next one's forward ended, has
// waited on the host: nobody but the tape had it any more. Whatever its fate, it is there until then, so
// nothing is lost if it counts as gone with its own region's forward; and then the planner knows that it may
// go.
void let_go_of_inputs(Sketch& sketch) {
  for (std::size_t i = 0; i + 1 < sketch.calls.size(); ++i) {
    const Sketch::Call &call = sketch.calls[i], &next = sketch.calls[i + 1];
    std::vector<trace::Fate> lean;
    for (const trace::TapeValue& value : call.tape.values)
      lean.push_back(value.operation == trace::TapeValue::kOutside ? trace::Fate::Keep
                                                                   : trace::Fate::Recompute);
    const std::vector<bool> is_kept = trace::kept_values(call.tape, trace::ClosureBytes(call.tape, lean));
    for (std::size_t value = 0; value < call.blocks.size(); ++value) {
      if (call.tape.values[value].operation != trace::TapeValue::kOutside ||
          call.blocks[value] == Sketch::kNoBlock || !is_kept[value])
        continue;
      Sketch::Block& block = sketch.blocks[call.blocks[value]];
      if (call.forward_end < block.death && block.death <= next.forward_end) block.death = call.forward_end;
    }
  }
}

}  // namespace

Sketcher::Sketcher(memory::Tracker& tracker, bool stand_ins) : tracker_(tracker), stand_ins_(stand_ins) {}

Sketcher::~Sketcher() {
  if (moments_) tracker_.send_to(nullptr);
}

void Sketcher::begin(tape::Recording& recording, tape::Fates fates) {
  recording.take_tapes();
  places_.clear();
  moments_ = std::make_unique<SketchedMoments>();
  tracker_.send_to(moments_.get());
  moments_->begin_step();
  recording.use(stand_ins_ ? tape::Fates::keep() : std::move(fates), this);
}

void Sketcher::pause(tape::Recording& recording) {
  tracker_.send_to(nullptr);
  moments_->pause();
  recording.use(tape::Fates::keep());
}

void Sketcher::go_on(tape::Recording& recording) {
  recording.take_tapes();
  tracker_.send_to(moments_.get());
  moments_->go_on();
  recording.use(stand_ins_ ? tape::Fates::keep() : tape::Fates::recompute(), this);
}

void Sketcher::abandon(tape::Recording& recording) {
  recording.use(tape::Fates::recompute());
  tracker_.send_to(nullptr);
  moments_.reset();
}

Sketch Sketcher::finish(tape::Recording& recording, bool inputs_may_leave) {
  recording.use(tape::Fates::recompute());
  tracker_.send_to(nullptr);
  const auto moments = std::exchange(moments_, nullptr);
  ensure(moments != nullptr, "a sketch was finished that had not begun");
  moments->settle();
  left_ = moments->alive();
  auto tapes = recording.take_numbered_tapes();  // among them may be some from before
  for (const auto& [number, passage] : moments->passages) {
    const auto tape = tapes.find(number);
    if (tape == tapes.end() && passage.unpacks.empty() && !stand_ins_)
      continue;  // an output that is looked at
    check(tape != tapes.end(),
          "a sketch needs whole steps: the graph of a region is still there after the step");
    moments->sketch.calls.push_back(make_call(*moments, number, std::move(tape->second)));
  }
  if (inputs_may_leave) let_go_of_inputs(moments->sketch);
  return std::move(moments->sketch);
}

void Sketcher::on_operator(hooks::OperatorCall& call) {
  if (!moments_ || moments_->is_paused()) return call.proceed();
  OperatorWork measured(call.op, call.stack);
  call.proceed();
  trace::Work work = measured.finish(call.stack);
  if (is_unpacking) work = {};  // it stands for something else
  std::lock_guard lock(mutex_);
  last_operator = static_cast<std::uint32_t>(moments_->sketch.operators.size());
  moments_->sketch.operators.push_back(std::move(work));
}

void Sketcher::on_begin(std::uint64_t tape) {
  {
    std::lock_guard lock(mutex_);
    places_[tape];  // it may record nothing
  }
  tracker_.in_order([&] { moments_->begin_region(tape); });
}

void Sketcher::on_end(std::uint64_t tape) {
  tracker_.in_order([&] { moments_->end_region(tape); });
}

void Sketcher::on_value(std::uint64_t tape, trace::ValueIndex value, const at::Tensor& tensor) {
  const trace::BlockId block = tracker_.block(tensor);
  std::lock_guard lock(mutex_);
  places_[tape].blocks[value] = block;
}

void Sketcher::on_operation(std::uint64_t tape, std::uint32_t operation) {
  std::lock_guard lock(mutex_);
  auto& operators = places_[tape].operators;
  operators.resize(operation + 1);
  operators[operation] = last_operator;
}

void Sketcher::on_save(std::uint64_t tape) {
  std::lock_guard lock(mutex_);
  Places& places = places_[tape];
  places.saved_at.push_back(static_cast<std::uint32_t>(places.operators.size()));
}

void Sketcher::before_unpack(std::uint64_t tape, std::size_t save) {
  tracker_.in_order([&] { moments_->begin_unpack(tape, save); });
  is_unpacking = true;
}

void Sketcher::after_unpack() {
  is_unpacking = false;
  tracker_.in_order([&] { moments_->end_unpack(); });
}

void Sketcher::on_release(std::uint64_t tape, std::size_t save) {
  tracker_.in_order([&] { moments_->release(tape, save); });
}

Sketch::Call Sketcher::make_call(const SketchedMoments& moments, std::uint64_t number,
                                 trace::RegionTape tape) const {
  const SketchedMoments::Passage& passage = moments.passages.at(number);
  const Places& places = places_.at(number);
  Sketch::Call call{.tape = std::move(tape),
                    .operators = places.operators,
                    .saved_at = places.saved_at,
                    .forward = passage.forward,
                    .forward_begin = passage.forward_begin,
                    .forward_end = passage.forward_end};
  for (trace::ValueIndex value = 0; value < call.tape.values.size(); ++value)
    call.blocks.push_back(moments.block(places.blocks.at(value)));
  for (std::size_t i = 0; i < call.tape.operations.size(); ++i) {
    const std::uint32_t ran = call.operators[i];
    call.begins.push_back(std::max(call.forward_begin, ran == 0 ? 0 : moments.ends[ran - 1]));
    call.ends.push_back(moments.ends[ran]);
    call.tape.operations[i].peak_bytes = moments.peak_between(call.begins[i], call.ends[i]);
  }
  for (std::size_t i = 0; i < call.tape.saves.size(); ++i) {
    const auto released = passage.releases.find(i);
    call.releases.push_back(released == passage.releases.end() ? moments.sketch.moments : released->second);
  }

  auto unpack = passage.unpacks.begin();
  for (const auto& node : call.tape.unpacks) {
    Sketch::Node& asks = call.nodes.emplace_back();
    for (std::size_t k = 0; k < node.size(); ++k, ++unpack) {
      asks.unpacks.push_back(unpack->at);
      // What is really recomputed may live on for others: a node is done when autograd lets go of what it
      // saved.
      const Moment end = stand_ins_ ? unpack->end : std::min(unpack->end, call.releases[unpack->save]);
      asks.end = std::max(asks.end, end);
    }
  }
  check(unpack == passage.unpacks.end(), "region \"", call.tape.region,
        "\" is asked for by more than one backward of the step, which cannot be planned yet");
  if (call.nodes.empty()) return call;
  call.backward = passage.backward;
  call.backward_begin = passage.unpacks.front().at;
  for (const Moment released : call.releases) call.backward_end = std::max(call.backward_end, released);
  return call;
}

}  // namespace snug::capture
