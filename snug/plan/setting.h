// How a step is set up before any value has a fate: the values of its outer levers, by name.
//
//   const Setting setting{.levers = {{kMicroBatch.name, 4}}, .accumulation = 2};
//   setting[kHeadChunks];  // 0, the plain value
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/export.h"

namespace snug::plan {

struct LeverKind {
  const char* name;    // in plans and documents
  std::int64_t plain;  // of a setting that does not name it; no value is less
  const char* text;    // for people, of a {value} other than 0 in a step of so many {passes}
};

// Rows of a pass; 0: as the loop has them.
inline constexpr LeverKind kMicroBatch{"micro_batch", 0, "micro-batch {value} x {passes}"};
// Pieces in which the head makes its logits; 0: by their size.
inline constexpr LeverKind kHeadChunks{"head_chunks", 0, "logits in {value} pieces"};

// Of the parameters whose states are on the host, per cent: the host steps them, beside the device.
inline constexpr LeverKind kSteppedOnHost{"stepped_on_host", 0, "{value} % of its updates by the CPU"};

// Of an optimizer's states, per cent: they wait there between steps.
inline constexpr LeverKind kStatesOnHost{"states_on_host", 0,
                                         "{value} % of the optimizer's states on the host"};

// Of the regions whose gradients, and whose weights, are there while they do not run, per cent.
inline constexpr LeverKind kGradientsOnHost{"gradients_on_host", 0, "{value} % of the gradients on the host"};
inline constexpr LeverKind kWeightsOnHost{"weights_on_host", 0, "{value} % of the weights on the host"};

// In the order in which they are pulled. A new one is one more line here; whoever makes settings with it
// carries it out.
inline constexpr LeverKind kLevers[] = {kMicroBatch,   kHeadChunks,      kSteppedOnHost,
                                        kStatesOnHost, kGradientsOnHost, kWeightsOnHost};

// Per cents that take the host's memory, in the order in which they are given up where it has too little.
inline constexpr LeverKind kHostLevers[] = {kSteppedOnHost, kWeightsOnHost, kGradientsOnHost, kStatesOnHost};

// Of one training.
struct Ranks {
  int count = 1;
  int per_machine = 1;  // the last machine may have fewer

  int machines() const { return (count + per_machine - 1) / per_machine; }
  int of_smallest_machine() const { return count - per_machine * (machines() - 1); }
};

struct SNUG_API Setting {
  std::map<std::string, std::int64_t> levers;
  std::int64_t accumulation = 1;  // passes of a step: it follows from the micro-batch

  std::int64_t operator[](const LeverKind& kind) const;
  bool operator==(const Setting&) const = default;
};

// What ranks do together for a region, in the order of the forward.
struct Collective {
  enum class What { Weights, Gradients };
  std::string region;
  What what = What::Weights;
  std::uint64_t bytes = 0;  // of all ranks together
  // Weights for its forward and its backward; else once a step: for the first forward, after the last
  // backward.
  bool is_in_each_pass = true;
  bool is_second = false;  // asked for when the first of what it is of is done; else all at once
};

// What waits on the host between steps; each update brings it to the device and back.
struct Streamed {
  std::uint64_t bytes = 0;
  std::uint64_t read_bytes = 0;  // of these, what does not go back: gradients
  // While the first pass runs forward, or while the last one runs backward; else after that.
  bool beside_forward = false, beside_backward = false;
  // What the host updates by itself.
  struct Stepped {
    std::uint64_t parameters = 0;                     // elements
    std::uint64_t bytes = 0, read_bytes = 0;          // of the above, what does not stream therefore
    std::uint64_t sent_bytes = 0, fetched_bytes = 0;  // gradients and weights that are copied for it
  };
  Stepped stepped = {};
  // What every pass moves: weights come for the forward and for the backward, gradients leave and, to be
  // added to, come.
  struct Region {
    std::string name;
    std::uint64_t weight_bytes = 0, gradient_bytes = 0;
  };
  std::vector<Region> regions = {};  // in the order of the forward
  Ranks ranks = {};
  std::vector<Collective> collectives = {};

  bool leaves_gradients() const { return bytes > 0 && beside_forward; }  // for the next step
};

// "micro-batch 4 x 2, logits in 16 pieces"; of one lever, if one is named.
SNUG_API std::string text(const Setting& setting, std::string_view lever = "");

}  // namespace snug::plan
