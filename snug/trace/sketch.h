// A step in which nothing was kept for the backward, laid out so that whoever chooses what is kept can say to
// the byte what the step would then need.
//
// Time is counted in moments: every allocation is one, and every time the backward asks for a saved tensor.
// Memory is highest at a moment; between two, only frees happen, so their order does not matter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "snug/trace/region_tape.h"
#include "snug/trace/work.h"

namespace snug::trace {

using Moment = std::uint32_t;

struct Sketch {
  static constexpr Moment kNever = ~Moment{0};
  static constexpr std::uint32_t kNoBlock = ~std::uint32_t{0};

  struct Block {
    std::uint64_t bytes = 0;
    Moment birth = 0;
    Moment death = kNever;  // the first moment without it
    // An operator took it for itself and never gives it back (cuBLAS's workspace): the next step has it from
    // its begin on.
    bool stays = false;
    // It outlives the step in the place of this one, which the step before had left: a gradient, a loss.
    std::uint32_t replaces = kNoBlock;

    bool operator==(const Block&) const = default;
  };

  // A node of the backward that asks for saved tensors: the unpacks of one entry of tape.unpacks.
  struct Node {
    std::vector<Moment> unpacks;
    Moment end = 0;  // the first moment without what it was given

    bool operator==(const Node&) const = default;
  };

  // One call of a region.
  struct Call {
    RegionTape tape;                       // recorded with everything to be kept
    std::vector<std::uint32_t> blocks;     // by value; kNoBlock: not in the account
    std::vector<std::uint32_t> operators;  // by operation of the tape: its number in Sketch::operators
    std::vector<Moment> begins, ends;      // by operation: its first moment, and the first after it
    std::vector<std::uint32_t> saved_at;   // by entry of tape.saves: how many operations had run by then
    std::vector<Moment> releases;          // by entry of tape.saves: the first moment at which it is gone
    std::vector<Node> nodes;               // as tape.unpacks
    struct Operators {
      std::uint32_t begin = 0, end = 0;  // in Sketch::operators
      bool operator==(const Operators&) const = default;
    };
    Operators forward, backward;
    Moment forward_begin = 0, forward_end = 0;
    Moment backward_begin = 0, backward_end = 0;  // equal if there was none

    bool operator==(const Call&) const = default;
  };

  Moment moments = 0;
  Moment begin = 0;  // of the step: what was born before is what it found
  std::vector<Block> blocks;
  std::vector<Call> calls;                // in the order of their forwards
  std::vector<Work> operators;            // every one that ran
  std::uint32_t operators_of_passes = 0;  // of these, all up to the end of the last backward

  bool operator==(const Sketch&) const = default;
};

}  // namespace snug::trace
