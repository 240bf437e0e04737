// The plans that a session has, each for steps of one structure and up to one size. Internal to session.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>

#include "snug/plan/plan.h"
#include "snug/trace/region_tape.h"

namespace snug::session {

struct KnownPlan {
  plan::Plan plan;
  std::int64_t size = 0;  // of the steps it is for, as passes() counts it; 0: not known
};

class KnownPlans {
 public:
  // One for the same structures and no larger a step goes.
  const KnownPlan& add(plan::Plan plan, std::int64_t size);
  // For steps with passes of this size, and not for much larger ones, with the structures of this one; null
  // if there is none. One for a single pass does not count on gradients that the pass before left.
  const KnownPlan* covering(std::int64_t size, bool is_one_pass, const KnownPlan& like) const;
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
