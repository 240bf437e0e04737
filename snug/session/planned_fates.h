// A plan's fates, for a tape::Recording.
//
//   tape::Recording recording(session::planned_fates(plan));
//
// Regions that the plan does not have, and calls that run another operation than it has, are recomputed from
// there on; so is a call that begins with more bytes than planned, or makes more, and a second pass of a step
// that was planned as one.
#pragma once

#include <functional>
#include <string>

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/tape/fates.h"

namespace snug::session {

enum class Difference { Larger, Other };
// Hears at most once per call of a region, inside it, what is not as planned.
using DifferenceListener = std::function<void(Difference, const std::string&)>;

SNUG_API tape::Fates planned_fates(const plan::Plan& plan, DifferenceListener listener = {});

}  // namespace snug::session
