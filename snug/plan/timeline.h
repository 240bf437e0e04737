// The memory of a step, moment by moment, under any choice of fates.
//
//   Timeline timeline(sketch);
//   const Profile first = timeline.profile(0, fates);
//   timeline.peak(profiles);
//
// A profile is that of one call of a region, with one fate per value of its tape.
// Torch-free, and exact: what it says is what a capture of the step under these fates says.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/closure.h"
#include "snug/trace/fate.h"
#include "snug/trace/sketch.h"

namespace snug::plan {

using trace::Fate;
using trace::Moment;
using trace::Sketch;

// What one call of a region adds to a step that keeps nothing.
struct Profile {
  struct Kept {
    std::uint32_t block;  // in Sketch::blocks
    Moment until;
    bool leaves = false;  // then, for the host
  };
  struct Copy {  // of what the tape keeps, made before it is overwritten
    Moment at, until;
    std::uint64_t bytes;
  };
  struct Away {  // on the host; from == until: they never leave
    Moment from = 0, until = 0;
  };
  struct Change {
    Moment at;
    std::int64_t bytes;
  };
  struct Spike {
    Moment at;  // an unpack
    std::uint64_t bytes;
  };

  std::vector<Kept> kept;
  std::vector<Copy> copies;
  Away away;                       // offloaded values
  std::vector<Change> fetched;     // of these, those that are back before the call's own backward
  std::vector<Change> recomputed;  // and offloaded values that live from this moment on, or no longer
  std::vector<Spike> spikes;       // the highest of recomputed values, while a saved tensor is recomputed
  std::vector<std::uint32_t> operations;  // run again, as numbers in the tape
  std::uint64_t offloaded_bytes = 0;
};

class SNUG_API Timeline {
 public:
  explicit Timeline(const Sketch& sketch) : sketch_(sketch) {}  // which outlives it

  const Sketch& sketch() const { return sketch_; }
  // Of the values of one call: those whose fate is not free keep theirs, whatever is asked.
  std::vector<Fate> allowed(std::size_t call, std::vector<Fate> fates) const;
  Profile profile(std::size_t call, std::span<const Fate> fates) const;

  // Live bytes at every moment.
  std::vector<std::uint64_t> live(std::span<const Profile* const> profiles) const;
  std::uint64_t peak(std::span<const Profile* const> profiles) const;

  // The first moment with the block: what stays was there when the step began.
  Moment birth(const Sketch::Block& block) const { return block.stays ? sketch_.begin : block.birth; }
  // The first moment without the block if nobody keeps it.
  Moment death(std::uint32_t block) const { return sketch_.blocks[block].death; }

 private:
  void add_copies(const Sketch::Call& call, std::span<const Moment> until, const trace::ClosureBytes& walk,
                  Profile& profile) const;
  void add_offloaded(std::size_t call, std::span<const std::uint32_t> blocks, std::uint64_t bytes,
                     Profile& profile) const;

  const Sketch& sketch_;
};

}  // namespace snug::plan
