// What is done about the memory of a step: what a plan says, what somebody chose by hand, or nothing.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/tape/recording.h"

namespace snug {

using tape::OffloadLimit;

// What of a region's forward the backward recomputes instead of keeping: nothing; all but matrix products,
// convolutions and attention; all of it.
enum class Recompute { None, Cheap, Block };

struct ByHand {
  Recompute recompute = Recompute::None;
  std::optional<OffloadLimit> offload;  // how much of what that leaves kept waits on the host
  std::string regions;                  // only those whose names begin so; empty: all

  bool is_nothing() const { return recompute == Recompute::None && !offload; }
};

struct Treatment {
  std::optional<plan::Plan> plan;  // takes precedence over what is chosen by hand
  ByHand by_hand;

  bool is_nothing() const { return !plan && by_hand.is_nothing(); }
};

// Records what follows under this treatment. Null if there is nothing to do: no treatment, and no options
// that want tapes.
SNUG_API std::unique_ptr<tape::Recording> make_recording(const Treatment& treatment,
                                                         tape::RecordingOptions options);

}  // namespace snug
