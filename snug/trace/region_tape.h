// The record of one region's forward, as plain data: what was computed from what, and what autograd saved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/fate.h"

namespace snug::trace {

using ValueIndex = std::uint32_t;  // in RegionTape::values

// The contents of one storage between two writes.
struct TapeValue {
  static constexpr std::uint32_t kOutside = ~std::uint32_t{0};
  std::uint32_t operation = kOutside;  // that made it; kOutside: it came into the region
  std::uint32_t output = 0;            // which of the operation's results, or of what came in
  std::uint64_t bytes = 0;
  Fate fate = Fate::Keep;  // in the run that was recorded
  bool parameter = false;  // or another leaf that wants a gradient: never counted as kept
  // Of a sketch: no operator of this step's graph made it, and somebody had it when the forward ended, as a
  // loop has its batch. It does not leave for the host.
  bool held = false;

  bool operator==(const TapeValue&) const = default;
};

struct TapeOperation {
  // An argument that is written: a private copy of `before` becomes `after`.
  struct Write {
    ValueIndex before, after;
    bool operator==(const Write&) const = default;
  };

  std::string name;
  bool replayable = true;
  std::vector<ValueIndex> reads;    // one entry per argument; shapes alone are no read
  std::vector<ValueIndex> results;  // new storages
  std::vector<Write> writes;
  // The highest it held beyond what was there before, its results included; 0: not known, take the results.
  std::uint64_t peak_bytes = 0;

  bool operator==(const TapeOperation&) const = default;
};

struct SNUG_API RegionTape {
  std::string region;
  std::vector<TapeOperation> operations;
  std::vector<TapeValue> values;
  std::vector<ValueIndex> saves;  // one entry per tensor that autograd saved
  // What the first backward asked for, in order; those of one node together.
  std::vector<std::vector<ValueIndex>> unpacks;

  // Of operators and edges, not of sizes: the same model at another shape has the same hash.
  std::uint64_t structure_hash() const;
  bool operator==(const RegionTape&) const = default;
};

}  // namespace snug::trace
