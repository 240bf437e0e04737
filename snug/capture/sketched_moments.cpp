#include "snug/capture/sketched_moments.h"

#include <algorithm>
#include <utility>

namespace snug::capture {

using trace::Event;
using trace::EventKind;
using trace::Sketch;

void SketchedMoments::write(const Event& event, const trace::NameTable&) {
  switch (event.kind) {
    case EventKind::Alloc:
      return alloc(event);
    case EventKind::Free:
      return free(event);
    case EventKind::Retag:
      if (const auto found = alive_.find(event.block); found != alive_.end())
        categories_[found->second] = event.category;
      return;
    case EventKind::Op:
      return ends.push_back(sketch.moments);
    default:
      return;
  }
}

std::uint32_t SketchedMoments::block(trace::BlockId id) const {
  const auto found = ever_.find(id);
  return found == ever_.end() ? Sketch::kNoBlock : found->second;
}

void SketchedMoments::alloc(const Event& event) {
  if (found_ && found_->insert(event.block).second && alive_.contains(event.block)) return;
  if (unpacking_) {
    stand_ins_[event.block] = {*unpacking_, passages[*unpacking_].unpacks.size() - 1};
    return;
  }
  const auto index = static_cast<std::uint32_t>(sketch.blocks.size());
  sketch.blocks.push_back({.bytes = event.bytes, .birth = sketch.moments++});
  categories_.push_back(event.category);
  freed_last_.clear();
  alive_[event.block] = ever_[event.block] = index;
}

void SketchedMoments::free(const Event& event) {
  if (const auto stand_in = stand_ins_.find(event.block); stand_in != stand_ins_.end()) {
    const auto [tape, unpack] = stand_in->second;
    trace::Moment& end = passages[tape].unpacks[unpack].end;
    end = end == Sketch::kNever ? sketch.moments : std::max(end, sketch.moments);
    stand_ins_.erase(stand_in);
    return;
  }
  const auto found = alive_.find(event.block);
  if (found == alive_.end()) return;
  sketch.blocks[found->second].death = sketch.moments;
  freed_last_.push_back(found->second);
  alive_.erase(found);
}

void SketchedMoments::pause() {
  found_.emplace();
}

void SketchedMoments::go_on() {
  const auto found = *std::exchange(found_, std::nullopt);
  std::map<std::uint32_t, trace::BlockId> gone;
  for (const auto& [id, block] : alive_)
    if (!found.contains(id)) gone.emplace(block, id);
  for (const auto& [block, id] : gone) free({.kind = EventKind::Free, .block = id});
  begin_step();
}

void SketchedMoments::begin_step() {
  sketch.begin = sketch.moments;
  for (const auto& [id, block] : alive_) found_by_step_.insert(block);
}

// Note [What a step leaves]
// A step that is sketched in the middle of a run finds what the one before left, and lets go of some of it:
// its gradients, its loss. What it leaves in turn takes their places, by size and category. What nobody
// claims and nothing before it had is an operator's own; claimed blocks (gradients of a single step) are as
// they were sketched.
void SketchedMoments::settle() {
  keep_what_was_torn_down();
  std::multimap<std::pair<std::uint64_t, trace::Category>, std::uint32_t> places;  // by bytes, what for
  for (const std::uint32_t i : found_by_step_)
    if (sketch.blocks[i].death != Sketch::kNever)
      places.emplace(std::pair(sketch.blocks[i].bytes, categories_[i]), i);
  if (sketch.begin == 0) sketch.begin = end_of_setting_up();
  for (std::uint32_t i = 0; i < sketch.blocks.size(); ++i) {
    Sketch::Block& block = sketch.blocks[i];
    if (block.birth < sketch.begin || block.death != Sketch::kNever) continue;
    const std::pair key(block.bytes, categories_[i]);
    if (const auto place = places.lower_bound(key); place != places.end() && place->first == key) {
      block.replaces = place->second;
      places.erase(place);
    } else {
      block.stays = categories_[i] == trace::Category::Temporary || categories_[i] == trace::Category::Other;
    }
  }
}

// A step that is sketched with all that is made for it ends by taking that down: from the first parameter or
// state of an optimizer on that was there before its first region. The next step of a run would find it
// there.
void SketchedMoments::keep_what_was_torn_down() {
  const trace::Moment begin = passages.empty() ? sketch.moments : passages.begin()->second.forward_begin;
  const auto first = std::ranges::find_if(freed_last_, [&](std::uint32_t block) {
    return sketch.blocks[block].birth < begin && (categories_[block] == trace::Category::Parameter ||
                                                  categories_[block] == trace::Category::Optimizer);
  });
  for (auto block = first; block != freed_last_.end(); ++block) sketch.blocks[*block].death = Sketch::kNever;
}

// Such a step begins after the last block that outlives it and is older than the first region.
trace::Moment SketchedMoments::end_of_setting_up() const {
  trace::Moment end = 0;
  if (passages.empty()) return end;
  for (const Sketch::Block& block : sketch.blocks)
    if (block.birth < passages.begin()->second.forward_begin && block.death == Sketch::kNever)
      end = block.birth + 1;
  return end;
}

std::uint64_t SketchedMoments::peak_between(trace::Moment begin, trace::Moment end) const {
  std::uint64_t peak = 0;
  const auto first = std::ranges::lower_bound(sketch.blocks, begin, {}, &Sketch::Block::birth);
  for (auto last = first; last != sketch.blocks.end() && last->birth < end; ++last) {
    std::uint64_t live = 0;
    for (auto block = first; block <= last; ++block)
      if (!block->stays && block->death > last->birth) live += block->bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

void SketchedMoments::begin_region(std::uint64_t tape) {
  passages[tape].forward_begin = sketch.moments;
  passages[tape].forward.begin = operators();
}

void SketchedMoments::end_region(std::uint64_t tape) {
  passages[tape].forward_end = sketch.moments;
  passages[tape].forward.end = operators();
}

void SketchedMoments::begin_unpack(std::uint64_t tape, std::size_t save) {
  const auto passage = passages.find(tape);
  if (passage == passages.end()) return;  // the graph of a step before
  unpacking_ = tape;
  freed_last_.clear();
  if (passage->second.unpacks.empty()) passage->second.backward.begin = operators();
  passage->second.unpacks.push_back({sketch.moments++, save, Sketch::kNever});
}

void SketchedMoments::release(std::uint64_t tape, std::size_t save) {
  const auto passage = passages.find(tape);
  if (passage == passages.end()) return;
  passage->second.releases[save] = sketch.moments;
  sketch.operators_of_passes = passage->second.backward.end = operators();
}

}  // namespace snug::capture
