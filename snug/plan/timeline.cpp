#include "snug/plan/timeline.h"

#include <algorithm>

#include "snug/trace/moves.h"

namespace snug::plan {

namespace {

using trace::ClosureBytes;
using trace::RegionTape;
using trace::TapeValue;
using trace::ValueIndex;

// By value: the first moment at which the forward itself has no use for it.
std::vector<Moment> ends_of_use(const Sketch& sketch, const Sketch::Call& call) {
  std::vector<Moment> ends;
  for (const std::uint32_t block : call.blocks)
    ends.push_back(block == Sketch::kNoBlock ? 0 : sketch.blocks[block].death);
  for (std::size_t i = 0; i < call.ends.size(); ++i)
    for (const auto& write : call.tape.operations[i].writes)
      ends[write.before] = std::min(ends[write.before], call.ends[i]);
  return ends;
}

// By value: the moment until which the tape holds it, 0 if it does not: because autograd saved it, or because
// it is read when another is recomputed. What is to be recomputed may still be saved as long as the forward
// has it.
std::vector<Moment> held_until(const Sketch& sketch, const Sketch::Call& call, const ClosureBytes& walk) {
  const RegionTape& tape = call.tape;
  std::vector<Moment> until(tape.values.size());
  std::vector<ValueIndex> todo;
  const auto hold = [&](ValueIndex first, Moment end) {
    todo.push_back(first);
    while (!todo.empty()) {
      const ValueIndex value = todo.back();
      todo.pop_back();
      if (until[value] >= end) continue;
      until[value] = end;
      if (!walk.is_recomputed(value)) continue;
      const auto& producer = tape.operations[tape.values[value].operation];
      todo.insert(todo.end(), producer.reads.begin(), producer.reads.end());
      for (const auto& write : producer.writes) todo.push_back(write.before);
    }
  };
  for (std::size_t i = 0; i < tape.saves.size(); ++i) hold(tape.saves[i], call.releases[i]);
  const std::vector<Moment> ends = ends_of_use(sketch, call);
  for (ValueIndex value = 0; value < ends.size(); ++value)
    if (walk.is_recomputed(value)) hold(value, std::min(ends[value], call.forward_end));
  return until;
}

std::vector<bool> overwritten_values(const RegionTape& tape) {
  std::vector<bool> is_overwritten(tape.values.size());
  for (const auto& operation : tape.operations)
    for (const auto& write : operation.writes) is_overwritten[write.before] = true;
  return is_overwritten;
}

}  // namespace

std::vector<Fate> Timeline::allowed(std::size_t call, std::vector<Fate> fates) const {
  const RegionTape& tape = sketch_.calls[call].tape;
  const std::vector<bool> is_overwritten = overwritten_values(tape);
  for (std::size_t i = 0; i < fates.size(); ++i) {
    const TapeValue& value = tape.values[i];
    const std::uint32_t block = sketch_.calls[call].blocks[i];
    const bool stays = is_overwritten[i] || value.held || block == Sketch::kNoBlock ||
                       death(block) > sketch_.calls[call].forward_end;  // whoever else needs it
    if (fates[i] == Fate::Offload && stays) fates[i] = Fate::Keep;
    if (value.fate == Fate::Recompute) fates[i] = Fate::Recompute;  // made by empty(): nothing to keep yet
    if (fates[i] == Fate::Recompute &&
        (value.operation == TapeValue::kOutside || !tape.operations[value.operation].replayable))
      fates[i] = Fate::Keep;
  }
  return fates;
}

Profile Timeline::profile(std::size_t number, std::span<const Fate> fates) const {
  const Sketch::Call& call = sketch_.calls[number];
  ClosureBytes walk(call.tape, fates);
  Profile profile;

  const std::vector<Moment> until = held_until(sketch_, call, walk);
  const std::vector<bool> is_overwritten = overwritten_values(call.tape);
  std::vector<std::uint32_t> offloaded;
  for (ValueIndex value = 0; value < until.size(); ++value) {
    const std::uint32_t block = call.blocks[value];
    if (walk.is_recomputed(value) || call.tape.values[value].parameter || block == Sketch::kNoBlock) continue;
    if (walk.is_offloaded(value)) {
      offloaded.push_back(block);
    } else if (!is_overwritten[value] && until[value] > death(block)) {
      profile.kept.push_back({block, until[value]});
    }
  }
  add_offloaded(number, offloaded, walk.live_bytes(), profile);
  add_copies(call, until, walk, profile);

  for (std::size_t n = 0; n < call.nodes.size(); ++n) {
    for (std::size_t k = 0; k < call.nodes[n].unpacks.size(); ++k) {
      const Moment moment = call.nodes[n].unpacks[k];
      const std::uint64_t before = walk.live_bytes();
      walk.take_peak();
      walk.unpack(call.tape.unpacks[n][k]);
      profile.spikes.push_back({moment, walk.take_peak()});
      profile.recomputed.push_back({moment + 1, static_cast<std::int64_t>(walk.live_bytes() - before)});
    }
    const std::uint64_t before = walk.live_bytes();
    walk.end_node();
    profile.recomputed.push_back({call.nodes[n].end, static_cast<std::int64_t>(walk.live_bytes() - before)});
  }
  profile.operations = walk.operations();
  return profile;
}

void Timeline::add_copies(const Sketch::Call& call, std::span<const Moment> until, const ClosureBytes& walk,
                          Profile& profile) const {
  for (std::size_t i = 0; i < call.tape.operations.size(); ++i)
    for (const auto& write : call.tape.operations[i].writes)
      if (!walk.is_recomputed(write.before) && until[write.before] > call.ends[i])
        profile.copies.push_back({call.begins[i], until[write.before], call.tape.values[write.before].bytes});
}

// See Note [One region ahead] in trace/moves.h. From the first unpack of its own backward on it counts with
// what is recomputed.
void Timeline::add_offloaded(std::size_t number, std::span<const std::uint32_t> blocks, std::uint64_t bytes,
                             Profile& profile) const {
  const Sketch::Call& call = sketch_.calls[number];
  if (blocks.empty() || call.nodes.empty()) return;
  profile.offloaded_bytes = bytes;
  const Moment needed = call.nodes.front().unpacks.front();
  const auto beside = trace::copied_beside(number, sketch_.calls.size());
  const Sketch::Call* next = beside ? &sketch_.calls[*beside] : nullptr;
  if (next && next->forward_begin > needed) next = nullptr;  // it is of another pass
  profile.away = {needed, needed};
  if (next) profile.away.from = next->forward_end;
  for (const std::uint32_t block : blocks) profile.kept.push_back({block, profile.away.from, true});
  profile.recomputed.push_back({needed, static_cast<std::int64_t>(bytes)});
  if (!next || next->nodes.empty()) return;
  profile.away.until = next->nodes.front().unpacks.front();
  profile.fetched.push_back({next->nodes.front().unpacks.front(), static_cast<std::int64_t>(bytes)});
  profile.fetched.push_back({needed, -static_cast<std::int64_t>(bytes)});
}

std::vector<std::uint64_t> Timeline::live(std::span<const Profile* const> profiles) const {
  std::vector<Moment> deaths;
  for (const Sketch::Block& block : sketch_.blocks) deaths.push_back(block.death);
  for (const Profile* profile : profiles)
    for (const auto& kept : profile->kept) deaths[kept.block] = std::max(deaths[kept.block], kept.until);
  std::vector<std::int64_t> bytes(sketch_.moments + 1);  // changes, then sums
  const auto change = [&](Moment at, std::int64_t by) { bytes[std::min(at, sketch_.moments)] += by; };
  for (std::size_t i = 0; i < deaths.size(); ++i) {
    const Sketch::Block& block = sketch_.blocks[i];
    change(birth(block), static_cast<std::int64_t>(block.bytes));
    change(deaths[i], -static_cast<std::int64_t>(block.bytes));
  }
  std::vector<std::int64_t> recomputed(sketch_.moments + 1);
  for (const Profile* profile : profiles)
    for (const auto& [at, by] : profile->fetched) change(at, by);
  for (const Profile* profile : profiles)
    for (const auto& [at, until, copied] : profile->copies) {
      change(at, static_cast<std::int64_t>(copied));
      change(until, -static_cast<std::int64_t>(copied));
    }
  for (const Profile* profile : profiles)
    for (const auto& [at, by] : profile->recomputed) recomputed[std::min(at, sketch_.moments)] += by;
  for (std::size_t i = 1; i < bytes.size(); ++i) {
    bytes[i] += bytes[i - 1];
    recomputed[i] += recomputed[i - 1];
  }
  for (const Profile* profile : profiles)  // higher than the level before: the level's own moments follow
    for (const auto& [at, peak] : profile->spikes)
      recomputed[at] = std::max(recomputed[at], static_cast<std::int64_t>(peak));
  std::vector<std::uint64_t> live(sketch_.moments);
  for (std::size_t i = 0; i < live.size(); ++i)
    live[i] = static_cast<std::uint64_t>(bytes[i] + recomputed[i]);
  return live;
}

std::uint64_t Timeline::peak(std::span<const Profile* const> profiles) const {
  const std::vector<std::uint64_t> bytes = live(profiles);
  return bytes.empty() ? 0 : *std::ranges::max_element(bytes);
}

}  // namespace snug::plan
