// The plans that a session has, each for steps of one structure and up to one size. Internal to session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <span>
#include <string>

#include "snug/plan/plan.h"
#include "snug/trace/region_tape.h"

namespace snug::session {

// What passes() knows of a step; 0: it was not asked.
struct StepSize {
  std::int64_t pass = 0;          // elements of a pass
  std::uint64_t batch_bytes = 0;  // of the batch, which is there as a whole
};

struct KnownPlan {
  plan::Plan plan;
  StepSize size;  // of the steps it is for

  // That a step of this size holds beyond what the plan says, its passes being no larger.
  std::uint64_t more_bytes(const StepSize& step) const {
    if (size.pass == 0) return 0;
    return step.batch_bytes - std::min(step.batch_bytes, size.batch_bytes);
  }
};

class KnownPlans {
 public:
  // One for the same structures and no larger a step goes.
  const KnownPlan& add(plan::Plan plan, const StepSize& size);
  // For steps with passes of this size, and not for much larger ones, with the structures of this one, within
  // the budget; null if there is none. One for a single pass does not count on gradients that the pass before
  // left.
  const KnownPlan* covering(const StepSize& size, bool is_one_pass, const KnownPlan& like,
                            std::uint64_t budget_bytes) const;
  // That makes most of those with the structures of this one.
  const KnownPlan& largest_like(const KnownPlan& known) const;
  // For the step with these tapes; null if there is none.
  const KnownPlan* for_step(std::span<const trace::RegionTape> tapes) const;

 private:
  std::list<KnownPlan> plans_;
};

std::uint64_t made_bytes(std::span<const trace::RegionTape> tapes);

// How the step with these tapes differs from what the plan says; empty if it does not.
std::string difference(const plan::Plan& plan, std::span<const trace::RegionTape> tapes);

}  // namespace snug::session
