// What was kept and what was recomputed, by region.
#pragma once

#include <cstdint>
#include <string>

#include "snug/base/export.h"
#include "snug/trace/region_totals.h"

namespace snug::report {

// The totals are over `forwards` forwards and `steps` steps; bytes are shown per forward, time per step.
// Regions of one kind with the same figures ("layers.0" to "layers.21") share a line. Then what could not be
// recomputed, and why.
SNUG_API std::string recomputed(const trace::Totals& totals, std::uint64_t forwards = 1,
                                std::uint64_t steps = 1);

}  // namespace snug::report
