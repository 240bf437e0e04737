#include "snug/plan/step_allocations.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "snug/base/error.h"

namespace snug::plan {

namespace {

using trace::ValueIndex;

// What happens at one moment, in this order.
enum class Phase : std::uint8_t {
  Free,
  Copy,    // of what is about to be overwritten
  Fetch,   // from the host, before the unpack that begins a backward
  Replay,  // for an unpack
  Birth,
};

struct When {
  Moment at;
  Phase phase;
};

// Those of a sketch keep their numbers; what a step under some fates takes beside them is numbered after
// them.
using BlockNumber = std::uint32_t;
constexpr BlockNumber kNoBlock = std::numeric_limits<BlockNumber>::max();

class Script {
 public:
  explicit Script(const Sketch& sketch) : sketch(sketch) {
    for (const Sketch::Block& block : sketch.blocks) {
      deaths.push_back(block.death);
      bytes_.push_back(block.bytes);
    }
    is_freed_.resize(deaths.size());
    heirs_.resize(deaths.size(), kNoBlock);
    for (BlockNumber i = 0; i < deaths.size(); ++i)
      if (const BlockNumber before = sketch.blocks[i].replaces; before != Sketch::kNoBlock)
        heirs_[before] = i;
  }

  BlockNumber take(When when, std::uint64_t bytes, bool is_of_product = false) {
    bytes_.push_back(bytes);
    const auto number = static_cast<BlockNumber>(bytes_.size() - 1);
    add({when, number, /*is_free=*/false, is_of_product});
    return number;
  }

  // One of the sketch's lives on if someone else has it.
  void give(When when, BlockNumber block) {
    if (block < deaths.size()) {
      if (deaths[block] > when.at) return;
      is_freed_[block] = true;
    }
    add({when, block, /*is_free=*/true});
  }

  void add_copy(const Profile::Copy& copy) {
    give({copy.until, Phase::Free}, take({copy.at, Phase::Copy}, copy.bytes));
  }

  // Once every call has said how long it keeps what, and what it frees itself.
  void add_blocks_of_sketch() {
    for (BlockNumber i = 0; i < deaths.size(); ++i) {
      add({{sketch.blocks[i].birth, Phase::Birth}, i, /*is_free=*/false});
      if (deaths[i] != Sketch::kNever && !is_freed_[i]) add({{deaths[i], Phase::Free}, i, /*is_free=*/true});
    }
  }

  void play(StepRange steps, trace::EventSink& sink);

  const Sketch& sketch;
  std::vector<Moment> deaths;  // by block of the sketch, as far as it is kept

 private:
  struct Change {
    When when;
    BlockNumber block;
    bool is_free;
    bool is_of_product = false;  // the first result of a matrix product that runs again
  };

  void add(Change change) {
    change.when.at = std::min(change.when.at, sketch.moments);
    changes_.push_back(change);
  }
  std::optional<trace::BlockId> id(const Change& change, int step, bool is_new) const;
  std::vector<BlockNumber> workspaces_of_backward() const;

  std::vector<std::uint64_t> bytes_;
  std::vector<bool> is_freed_;
  std::vector<BlockNumber> heirs_;  // by block of the sketch: the one that takes its place, if any
  std::vector<Change> changes_;
};

// Of the block that a change is about in this step; none if this step does not make the change.
std::optional<trace::BlockId> Script::id(const Change& change, int step, bool is_new) const {
  const auto name = [&](int of_step, BlockNumber block) {
    return static_cast<trace::BlockId>(of_step) * bytes_.size() + block + 1;
  };
  if (change.block >= sketch.blocks.size()) return name(step, change.block);
  const Sketch::Block& block = sketch.blocks[change.block];
  if (block.birth >= sketch.begin) {
    const bool is_made_once = block.death == Sketch::kNever && block.replaces == Sketch::kNoBlock;
    return step > 0 && is_made_once ? std::nullopt : std::optional(name(step, change.block));
  }
  const bool is_left = heirs_[change.block] != kNoBlock;  // by the step before
  if (step == 0) return is_left && is_new ? std::nullopt : std::optional(name(step, change.block));
  return change.is_free && is_left ? std::optional(name(step - 1, heirs_[change.block])) : std::nullopt;
}

// The first product of the backward takes them. One that runs again may be earlier than the sketch's first.
std::vector<BlockNumber> Script::workspaces_of_backward() const {
  std::vector<BlockNumber> found;
  Moment begin = sketch.moments, end = 0;  // of the first backward
  for (const Sketch::Call& call : sketch.calls) {
    if (call.nodes.empty()) continue;
    begin = std::min(begin, call.backward_begin);
    if (end == 0) end = call.backward_end;
  }
  for (BlockNumber i = 0; i < sketch.blocks.size(); ++i)
    if (const Sketch::Block& block = sketch.blocks[i];
        block.stays && begin < block.birth && block.birth < end)
      found.push_back(i);
  return found;
}

void Script::play(StepRange steps, trace::EventSink& sink) {
  std::ranges::stable_sort(
      changes_, {}, [](const Change& change) { return std::tuple(change.when.at, change.when.phase); });
  const trace::NameTable no_names;
  std::vector<BlockNumber> workspaces = workspaces_of_backward();
  std::vector<bool> is_taken(sketch.blocks.size());
  const auto write = [&](const Change& change, int step) {
    const bool is_of_sketch = change.block < is_taken.size();
    if (step == 0 && is_of_sketch && !change.is_free && is_taken[change.block]) return;
    if (is_of_sketch) is_taken[change.block] = true;
    const auto block = id(change, step, steps.is_new);
    if (!block) return;
    sink.write({.kind = change.is_free ? trace::EventKind::Free : trace::EventKind::Alloc,
                .block = *block,
                .bytes = bytes_[change.block]},
               no_names);
  };
  for (int step = steps.first; step < steps.first + steps.count; ++step)
    for (const Change& change : changes_) {
      write(change, step);
      if (!change.is_of_product) continue;
      for (const BlockNumber workspace : std::exchange(workspaces, {}))  // a later step finds them there
        write({change.when, workspace, /*is_free=*/false}, step);
    }
}

// One call's backward, with the memory that it takes beside the sketch's.
class ReplayedCall final : public trace::ClosureBytes {
 public:
  ReplayedCall(Script& script, const Sketch::Call& call, std::span<const Fate> fates)
      : ClosureBytes(call.tape, fates),
        script_(script),
        call_(call),
        memory_(call.tape.values.size(), kNoBlock) {}

  void play(const Profile::Away& away) {
    now_ = {away.until, Phase::Fetch};
    const std::vector<ValueIndex> sent = in_the_order_they_are_sent();
    for (auto value = sent.rbegin(); value != sent.rend(); ++value)
      away.from == away.until ? stay(*value) : on_fetch(*value);
    for (std::size_t n = 0; n < call_.nodes.size(); ++n) {
      for (std::size_t k = 0; k < call_.nodes[n].unpacks.size(); ++k) {
        now_ = {call_.nodes[n].unpacks[k], Phase::Replay};
        unpack(call_.tape.unpacks[n][k]);
      }
      now_ = {call_.nodes[n].end, Phase::Free};
      end_node();
    }
    now_ = {call_.backward_end, Phase::Free};  // what no node asked for goes with the graph
    for (ValueIndex value = 0; value < memory_.size(); ++value) on_free(value);
  }

 private:
  // The tape sends what it holds in the order in which it came to hold it: when autograd saved it, or when an
  // operation read it that may run again.
  std::vector<ValueIndex> in_the_order_they_are_sent() const {
    std::vector<ValueIndex> sent;
    const auto send = [&](ValueIndex value) {
      if (is_offloaded(value) && std::ranges::find(sent, value) == sent.end()) sent.push_back(value);
    };
    std::size_t save = 0;
    const auto send_saved = [&](std::size_t operations) {
      for (; save < call_.saved_at.size() && call_.saved_at[save] <= operations; ++save)
        send(call_.tape.saves[save]);
    };
    for (std::size_t i = 0; i < call_.tape.operations.size(); ++i) {
      send_saved(i);
      if (may_run_again(call_.tape.operations[i]))
        for (const ValueIndex read : call_.tape.operations[i].reads) send(read);
    }
    send_saved(call_.tape.operations.size());
    return sent;
  }

  bool may_run_again(const trace::TapeOperation& operation) const {
    return std::ranges::any_of(operation.results, [&](ValueIndex made) { return is_recomputed(made); }) ||
           std::ranges::any_of(operation.writes,
                               [&](const auto& write) { return is_recomputed(write.after); });
  }

  void stay(ValueIndex value) { memory_[value] = call_.blocks[value]; }

  void on_fetch(ValueIndex value) override {
    const bool is_still_there = script_.deaths[call_.blocks[value]] > now_.at;  // someone else has it
    if (is_still_there) return stay(value);
    put(value, script_.take(now_, call_.tape.values[value].bytes), /*is_wanted=*/true);
  }
  void on_copy(ValueIndex after, bool is_wanted) override {
    if (call_.blocks[after] == Sketch::kNoBlock) return;  // on another device
    put(after, script_.take(now_, call_.tape.values[after].bytes), is_wanted);
  }
  void on_move(ValueIndex before, ValueIndex after, bool is_wanted) override {
    put(after, std::exchange(memory_[before], kNoBlock), is_wanted);
  }
  void on_free(ValueIndex value) override {
    if (memory_[value] != kNoBlock) script_.give(now_, std::exchange(memory_[value], kNoBlock));
  }

  // Its allocations are those of the forward.
  void on_run(std::uint32_t number, std::span<const ValueIndex> wanted) override {
    const trace::TapeOperation& operation = call_.tape.operations[number];
    const auto& blocks = script_.sketch.blocks;
    const trace::Work& work = script_.sketch.operators[call_.operators[number]];
    bool is_of_product = work.flops > 0 && !work.is_attention;
    std::vector<std::pair<Moment, BlockNumber>> temporaries;  // and when they go
    auto block = std::ranges::lower_bound(blocks, call_.begins[number], {}, &Sketch::Block::birth);
    for (; block != blocks.end() && block->birth < call_.ends[number]; ++block) {
      std::erase_if(temporaries, [&](const auto& temporary) {
        const bool goes = temporary.first <= block->birth;
        if (goes) script_.give(now_, temporary.second);
        return goes;
      });
      const auto result = std::ranges::find(operation.results, block - blocks.begin(),
                                            [&](ValueIndex value) { return call_.blocks[value]; });
      const bool is_result = result != operation.results.end();
      if (!is_result && block->death > call_.ends[number]) continue;  // it is there already
      const BlockNumber taken =
          script_.take(now_, block->bytes, is_result && std::exchange(is_of_product, false));
      if (is_result)
        put(*result, taken, std::ranges::find(wanted, *result) != wanted.end());
      else
        temporaries.emplace_back(block->death, taken);
    }
    for (const auto& [death, temporary] : temporaries) script_.give(now_, temporary);
    for (const BlockNumber unwanted : std::exchange(unwanted_, {})) script_.give(now_, unwanted);
  }

  void put(ValueIndex value, BlockNumber block, bool is_wanted) {
    if (block == kNoBlock) return;
    if (!is_wanted) return unwanted_.push_back(block);
    on_free(value);  // asked for again while a node still has it
    memory_[value] = block;
  }

  Script& script_;
  const Sketch::Call& call_;
  std::vector<BlockNumber> memory_;    // by value: what it takes in the backward
  std::vector<BlockNumber> unwanted_;  // until the operation ends that runs
  When now_{};
};

}  // namespace

int steps_to_settle(bool leaves_gradients) {
  return leaves_gradients ? 8 : 2;
}

void replay_steps(const Timeline& timeline, std::span<const std::vector<Fate>> fates, StepRange steps,
                  trace::EventSink& sink) {
  const Sketch& sketch = timeline.sketch();
  check(fates.size() == sketch.calls.size(), "a sketch of ", sketch.calls.size(),
        " calls needs the fates of each, got those of ", fates.size());
  Script script(sketch);
  std::vector<Profile> profiles;
  for (std::size_t call = 0; call < fates.size(); ++call) {
    profiles.push_back(timeline.profile(call, fates[call]));
    for (const auto& [block, until, leaves] : profiles.back().kept)
      script.deaths[block] = std::max(script.deaths[block], until);
    for (const Profile::Copy& copy : profiles.back().copies) script.add_copy(copy);
  }
  for (std::size_t call = 0; call < fates.size(); ++call)
    ReplayedCall(script, sketch.calls[call], fates[call]).play(profiles[call].away);
  script.add_blocks_of_sketch();
  script.play(steps, sink);
}

trace::AllocatorLayout as_left_by(const Sketch& sketch,
                                  const std::unordered_map<trace::BlockId, std::uint32_t>& left,
                                  trace::AllocatorLayout layout) {
  std::multimap<std::uint64_t, BlockNumber> missing;  // of what the sketched step left, by bytes
  for (BlockNumber i = 0; i < sketch.blocks.size(); ++i)
    if (sketch.blocks[i].death == Sketch::kNever) missing.emplace(sketch.blocks[i].bytes, i);
  const auto claim = [&](trace::AllocatorLayout::Block& block, auto is_it) {
    const auto [first, last] = missing.equal_range(block.bytes);
    const auto found = std::find_if(first, last, [&](const auto& entry) { return is_it(entry.second); });
    if (found == last) return false;
    block.id = found->second + 1;  // as Script::id() names what the first step made
    missing.erase(found);
    return true;
  };
  std::vector<trace::AllocatorLayout::Block*> others;
  for (trace::AllocatorLayout::Segment& segment : layout.segments)
    for (trace::AllocatorLayout::Block& block : segment.blocks) {
      const auto known = left.find(block.id);
      const bool is_known =
          known != left.end() && claim(block, [&](BlockNumber number) { return number == known->second; });
      if (!is_known && block.id != 0) others.push_back(&block);
    }
  for (trace::AllocatorLayout::Block* block : others)
    if (!claim(*block, [](BlockNumber) { return true; })) block->id = 0;
  return layout;
}

}  // namespace snug::plan
