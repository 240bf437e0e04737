// A region's tape as bytes, for the trace file. Internal to trace.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "snug/base/export.h"
#include "snug/trace/region_tape.h"

namespace snug::trace {

SNUG_API std::string encode(const RegionTape& tape);
SNUG_API std::optional<RegionTape> decode(
    std::string_view bytes);  // nothing if they are no tape, or one that contradicts itself

}  // namespace snug::trace
