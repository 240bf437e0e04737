// A plan's fates, for a tape::Recording.
//
//   tape::Recording recording(session::planned_fates(plan));
//
// What the plan does not know, or knows under another name, is re-made: a surprise costs time, never memory.
// A region that makes more bytes than were planned is an Error that says so, before memory runs out.
#pragma once

#include "snug/base/export.h"
#include "snug/plan/plan.h"
#include "snug/tape/fates.h"

namespace snug::session {

SNUG_API tape::Fates planned_fates(const plan::Plan& plan);

}  // namespace snug::session
