#include "snug/capture/sketch.h"

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"
#include "snug/capture/gradient_sum.h"
#include "snug/capture/meta_kernels.h"
#include "snug/capture/operator_work.h"
#include "snug/capture/witness.h"
#include "snug/capture/workspaces.h"
#include "snug/tape/recording.h"

namespace snug::capture {

namespace {

using trace::Event;
using trace::EventKind;
using trace::Moment;
using trace::Sketch;

// Where a tape's parts were, as it was described.
struct Places {
  std::unordered_map<trace::ValueIndex, trace::BlockId> blocks;
  std::vector<std::uint32_t> operators;  // by operation
};

// Turns events into moments, blocks and nodes.
class Moments final : public trace::EventSink {
 public:
  void write(const Event& event, const trace::NameTable& names) override {
    switch (event.kind) {
      case EventKind::Alloc:
        return alloc(event);
      case EventKind::Free:
        return free(event);
      case EventKind::Retag:
        if (const auto found = blocks_.find(event.block); found != blocks_.end())
          sketch.blocks[found->second].category = event.category;
        return;
      case EventKind::Op:
        return end_operator();
      case EventKind::Mark:
        return mark(names[event.name], event.bytes);
      default:
        return;
    }
  }

  std::uint32_t block(trace::BlockId id) const {
    const auto found = all_blocks_.find(id);
    return found == all_blocks_.end() ? Sketch::kNoBlock : found->second;
  }

  struct Unpack {
    Moment at, end;
  };
  struct Passage {
    Moment forward_begin = 0, forward_end = 0;
    std::uint32_t first_operator = 0;
    std::vector<Unpack> unpacks;
    std::map<std::size_t, Moment> releases;
  };

  Sketch sketch;
  std::map<std::uint64_t, Passage> passages;  // by tape
  std::vector<std::uint64_t> peaks;           // by operator
  std::vector<Moment> ends;                   // by operator

 private:
  void alloc(const Event& event) {
    if (unpacking_) {
      stand_ins_[event.block] = {*unpacking_, passages[*unpacking_].unpacks.size() - 1};
      return;
    }
    const auto index = static_cast<std::uint32_t>(sketch.blocks.size());
    sketch.blocks.push_back({.bytes = event.bytes, .birth = sketch.moments++, .category = event.category});
    blocks_[event.block] = all_blocks_[event.block] = index;
    operator_live_ += event.bytes;
    operator_peak_ = std::max(operator_peak_, operator_live_);
  }

  void free(const Event& event) {
    if (const auto stand_in = stand_ins_.find(event.block); stand_in != stand_ins_.end()) {
      const auto [tape, unpack] = stand_in->second;
      passages[tape].unpacks[unpack].end = sketch.moments;
      stand_ins_.erase(stand_in);
      return;
    }
    const auto found = blocks_.find(event.block);
    if (found == blocks_.end()) return;
    Sketch::Block& block = sketch.blocks[found->second];
    block.death = sketch.moments;
    if (found->second >= operator_first_) operator_live_ -= block.bytes;
    blocks_.erase(found);
  }

  void end_operator() {
    peaks.push_back(operator_peak_);
    ends.push_back(sketch.moments);
    operator_live_ = operator_peak_ = 0;
    operator_first_ = static_cast<std::uint32_t>(sketch.blocks.size());
  }

  void mark(const std::string& name, std::uint64_t number) {
    if (name == "unpack") {
      passages[number].unpacks.push_back({sketch.moments++, Sketch::kNever});
      unpacking_ = number;
    }
    if (name == "unpacked") unpacking_.reset();
    if (name == "released") {
      passages[number >> 32].releases[number & 0xffffffff] = sketch.moments;
      sketch.operators_of_passes = static_cast<std::uint32_t>(peaks.size());
    }
    if (name == "region begins") {
      passages[number].forward_begin = sketch.moments;
      passages[number].first_operator = static_cast<std::uint32_t>(peaks.size());
    }
    if (name == "region ends") passages[number].forward_end = sketch.moments;
  }

  std::unordered_map<trace::BlockId, std::uint32_t> blocks_, all_blocks_;                // alive; ever
  std::unordered_map<trace::BlockId, std::pair<std::uint64_t, std::size_t>> stand_ins_;  // tape, unpack
  std::optional<std::uint64_t> unpacking_;                                               // for this tape
  std::uint64_t operator_live_ = 0, operator_peak_ = 0;
  std::uint32_t operator_first_ = 0;
};

// Writes into the trace what happens to tapes, and notes where they lie.
class Sketcher final : public hooks::OperatorListener, public tape::SketchListener {
 public:
  Sketcher(memory::Tracker& tracker, Sketch& sketch) : tracker_(tracker), sketch_(sketch) {}

  void on_operator(hooks::OperatorCall& call) override {
    OperatorWork measured(call.op, call.stack);
    call.proceed();
    trace::Work work = measured.finish(call.stack);
    if (unpacking_) work = {};  // it stands for something else
    sketch_.operators.push_back(std::move(work));
  }

  void on_begin(std::uint64_t tape) override { tracker_.mark("region begins", tape); }
  void on_end(std::uint64_t tape) override { tracker_.mark("region ends", tape); }
  void on_value(std::uint64_t tape, trace::ValueIndex value, const at::Tensor& tensor) override {
    places[tape].blocks[value] = tracker_.block(tensor);
  }
  void on_operation(std::uint64_t tape, std::uint32_t operation) override {
    auto& operators = places[tape].operators;
    operators.resize(operation + 1);
    operators[operation] = static_cast<std::uint32_t>(sketch_.operators.size() - 1);
  }
  void before_unpack(std::uint64_t tape) override {
    tracker_.mark("unpack", tape);
    unpacking_ = true;
  }
  void after_unpack() override {
    unpacking_ = false;
    tracker_.mark("unpacked");
  }
  void on_release(std::uint64_t tape, std::size_t save) override {
    tracker_.mark("released", tape << 32 | save);
  }

  std::map<std::uint64_t, Places> places;  // by tape

 private:
  memory::Tracker& tracker_;
  Sketch& sketch_;
  bool unpacking_ = false;
};

Sketch::Call make_call(trace::RegionTape tape, const Moments& moments, const Moments::Passage& passage,
                       const Places& places) {
  Sketch::Call call{.tape = std::move(tape),
                    .operators = places.operators,
                    .first_operator = passage.first_operator,
                    .forward_begin = passage.forward_begin,
                    .forward_end = passage.forward_end};
  for (trace::ValueIndex value = 0; value < call.tape.values.size(); ++value)
    call.blocks.push_back(moments.block(places.blocks.at(value)));
  for (std::size_t i = 0; i < call.tape.operations.size(); ++i)
    call.tape.operations[i].peak_bytes = moments.peaks[call.operators[i]];
  for (const std::uint32_t number : call.operators) call.ends.push_back(moments.ends[number]);
  for (std::size_t i = 0; i < call.tape.saves.size(); ++i) {
    const auto released = passage.releases.find(i);
    call.releases.push_back(released == passage.releases.end() ? moments.sketch.moments : released->second);
  }

  auto unpack = passage.unpacks.begin();
  for (const auto& node : call.tape.unpacks) {
    Sketch::Node& asks = call.nodes.emplace_back();
    for (std::size_t k = 0; k < node.size(); ++k, ++unpack) {
      asks.unpacks.push_back(unpack->at);
      asks.end = std::max(asks.end, unpack->end);
    }
  }
  check(unpack == passage.unpacks.end(), "region \"", call.tape.region,
        "\" is asked for by more than one backward of the step, which cannot be planned yet");
  if (call.nodes.empty()) return call;
  call.backward_begin = passage.unpacks.front().at;
  for (const Moment released : call.releases) call.backward_end = std::max(call.backward_end, released);
  return call;
}

}  // namespace

Sketch sketch(const std::function<void(memory::Tracker&)>& run, bool workspaces) {
  register_meta_kernels();
  GradientSumScope sums;
  std::optional<WorkspaceScope> kernels_own;
  if (workspaces) kernels_own.emplace();
  Moments moments;
  memory::Tracker tracker({.device = c10::kMeta, .sink = &moments});
  Witness witness(/*meta=*/true);
  hooks::OperatorListenerGuard witness_guard(witness);
  Sketcher sketcher(tracker, moments.sketch);
  hooks::OperatorListenerGuard sketcher_guard(sketcher);
  tape::Recording recording(tape::Fates::keep(), {.sketch = &sketcher});
  run(tracker);
  tracker.live_bytes();  // every event has been written
  auto tapes = recording.take_tapes();
  check(tapes.size() == moments.passages.size(),
        "a sketch needs whole steps: the graph of a region is still there after the step");
  for (std::uint64_t number = 0; number < tapes.size(); ++number)
    moments.sketch.calls.push_back(
        make_call(std::move(tapes[number]), moments, moments.passages[number], sketcher.places[number]));
  return std::move(moments.sketch);
}

}  // namespace snug::capture
