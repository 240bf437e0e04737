// Turns what happens to memory into the moments, blocks and passages of a sketch. Internal to capture.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/trace/category.h"
#include "snug/trace/sketch.h"
#include "snug/trace/trace.h"

namespace snug::capture {

class SketchedMoments final : public trace::EventSink {
 public:
  struct Unpack {
    trace::Moment at;
    std::size_t save;
    trace::Moment end;  // of all that was made for it
  };
  // One call of a region, as a tape lived through it.
  struct Passage {
    trace::Moment forward_begin = 0, forward_end = 0;
    trace::Sketch::Call::Operators forward, backward;
    std::vector<Unpack> unpacks;
    std::map<std::size_t, trace::Moment> releases;  // by save
  };

  void write(const trace::Event& event, const trace::NameTable& names) override;
  void begin_step();  // what was written so far is what it finds
  void settle();      // it is over: says what it leaves
  // Between the two nothing is written; then what is there now, before go_on().
  void pause();
  void go_on();
  bool is_paused() const { return found_.has_value(); }

  // As tape::SketchListener has them, between the events that come before and after.
  void begin_region(std::uint64_t tape);
  void end_region(std::uint64_t tape);
  void begin_unpack(std::uint64_t tape, std::size_t save);
  void end_unpack() { unpacking_.reset(); }
  void release(std::uint64_t tape, std::size_t save);

  std::uint32_t block(trace::BlockId id) const;  // or Sketch::kNoBlock
  const std::unordered_map<trace::BlockId, std::uint32_t>& alive() const { return alive_; }
  // The highest of what is allocated between the two.
  std::uint64_t peak_between(trace::Moment begin, trace::Moment end) const;

  trace::Sketch sketch;
  std::map<std::uint64_t, Passage> passages;  // by tape
  std::vector<trace::Moment> ends;            // by operator

 private:
  void alloc(const trace::Event& event);
  void free(const trace::Event& event);
  void keep_what_was_torn_down();
  trace::Moment end_of_setting_up() const;
  std::uint32_t operators() const { return static_cast<std::uint32_t>(ends.size()); }  // so far

  std::unordered_map<trace::BlockId, std::uint32_t> alive_, ever_;
  std::unordered_map<trace::BlockId, std::pair<std::uint64_t, std::size_t>> stand_ins_;  // tape, unpack
  std::optional<std::uint64_t> unpacking_;                                               // for this tape
  std::vector<trace::Category> categories_;                                              // by block
  std::optional<std::unordered_set<trace::BlockId>> found_;                              // after a pause
  std::set<std::uint32_t> found_by_step_;                                                // blocks
  std::vector<std::uint32_t> freed_last_;  // blocks, in order, after all that was allocated
};

}  // namespace snug::capture
