// A plan's fates, for a tape::Recording.
//
//   tape::Recording recording(session::planned_fates(plan));
//
// Regions that the plan does not have, and calls that run another operation where the plan names one, are
// re-made. What it names nowhere is kept, but never more than the bytes that it knows its region to make: a
// region that makes more is an Error that says so, or, if `too_much` is given, is re-made from there on.
#pragma once

#include <functional>
#include <string>

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/tape/fates.h"

namespace snug::session {

// `too_much` hears once per call of a region, inside it, what the Error would say.
SNUG_API tape::Fates planned_fates(const plan::Plan& plan,
                                   std::function<void(const std::string&)> too_much = {});

}  // namespace snug::session
