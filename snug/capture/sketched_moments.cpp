#include "snug/capture/sketched_moments.h"

#include <algorithm>

namespace snug::capture {

using trace::Event;
using trace::EventKind;
using trace::Sketch;

void SketchedMoments::write(const Event& event, const trace::NameTable& names) {
  switch (event.kind) {
    case EventKind::Alloc:
      return alloc(event);
    case EventKind::Free:
      return free(event);
    case EventKind::Retag:
      if (const auto found = alive_.find(event.block); found != alive_.end())
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

std::uint32_t SketchedMoments::block(trace::BlockId id) const {
  const auto found = ever_.find(id);
  return found == ever_.end() ? Sketch::kNoBlock : found->second;
}

void SketchedMoments::alloc(const Event& event) {
  if (unpacking_) {
    stand_ins_[event.block] = {*unpacking_, passages[*unpacking_].unpacks.size() - 1};
    return;
  }
  const auto index = static_cast<std::uint32_t>(sketch.blocks.size());
  sketch.blocks.push_back({.bytes = event.bytes, .birth = sketch.moments++, .category = event.category});
  alive_[event.block] = ever_[event.block] = index;
  operator_live_ += event.bytes;
  operator_peak_ = std::max(operator_peak_, operator_live_);
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
  Sketch::Block& block = sketch.blocks[found->second];
  block.death = sketch.moments;
  if (found->second >= operator_first_) operator_live_ -= block.bytes;
  alive_.erase(found);
}

void SketchedMoments::end_operator() {
  peaks.push_back(operator_peak_);
  ends.push_back(sketch.moments);
  begin_operator();
}

void SketchedMoments::begin_operator() {
  operator_live_ = operator_peak_ = 0;
  operator_first_ = static_cast<std::uint32_t>(sketch.blocks.size());
}

void SketchedMoments::mark(const std::string& name, std::uint64_t number) {
  const bool is_older = !passages.contains(number >> 32);  // the graph of a step before
  if (name == "unpack" && !is_older) {
    unpacking_ = number >> 32;
    if (passages[*unpacking_].unpacks.empty())
      passages[*unpacking_].backward.begin = static_cast<std::uint32_t>(peaks.size());
    passages[*unpacking_].unpacks.push_back({sketch.moments++, number & 0xffffffff, Sketch::kNever});
  }
  if (name == "unpacked") unpacking_.reset();
  if (name == "released" && !is_older) {
    Passage& passage = passages[number >> 32];
    passage.releases[number & 0xffffffff] = sketch.moments;
    sketch.operators_of_passes = passage.backward.end = static_cast<std::uint32_t>(peaks.size());
  }
  if (name == "region begins") {
    passages[number].forward_begin = sketch.moments;
    passages[number].forward.begin = static_cast<std::uint32_t>(peaks.size());
    begin_operator();
  }
  if (name == "region ends") {
    passages[number].forward_end = sketch.moments;
    passages[number].forward.end = static_cast<std::uint32_t>(peaks.size());
  }
}

}  // namespace snug::capture
