// Turns what happens to memory into the moments, blocks and passages of a sketch. Internal to capture.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

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

  std::uint32_t block(trace::BlockId id) const;  // or Sketch::kNoBlock

  trace::Sketch sketch;
  std::map<std::uint64_t, Passage> passages;  // by tape
  std::vector<std::uint64_t> peaks;           // by operator
  std::vector<trace::Moment> ends;            // by operator

 private:
  void alloc(const trace::Event& event);
  void free(const trace::Event& event);
  void end_operator();
  void begin_operator();
  void mark(const std::string& name, std::uint64_t number);

  std::unordered_map<trace::BlockId, std::uint32_t> alive_, ever_;
  std::unordered_map<trace::BlockId, std::pair<std::uint64_t, std::size_t>> stand_ins_;  // tape, unpack
  std::optional<std::uint64_t> unpacking_;                                               // for this tape
  std::uint64_t operator_live_ = 0, operator_peak_ = 0;
  std::uint32_t operator_first_ = 0;
};

// Two numbers in a mark's one.
inline std::uint64_t tape_and_save(std::uint64_t tape, std::size_t save) {
  return tape << 32 | save;
}

}  // namespace snug::capture
