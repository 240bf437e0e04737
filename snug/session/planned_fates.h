// A plan's fates, for a tape::Recording.
//
//   PlannedFates planned(plan);
//   tape::Recording recording(planned.fates());
//
// Regions that the plan does not have, and calls that run another operation than it has, are recomputed from
// there on; so is a call that begins with more bytes than planned, or makes more, and a second pass of a step
// that was planned as one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/tape/fates.h"

namespace snug::session {

class SNUG_API PlannedFates {
 public:
  enum class Difference { Larger, Other };
  using Listener = std::function<void(Difference, const std::string&)>;

  // The listener hears at most once per call of a region, inside it, what is not as planned.
  explicit PlannedFates(const plan::Plan& plan, Listener listener = {});

  tape::Fates fates() const;
  // Passes are counted from here on.
  void begin_step();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace snug::session
