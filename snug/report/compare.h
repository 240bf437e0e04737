// Two accounts side by side: predicted against measured, and one trace against another.
#pragma once

#include <cstdint>
#include <string>

#include "snug/base/export.h"
#include "snug/report/peak.h"
#include "snug/trace/ledger.h"

namespace snug::report {

struct SNUG_API Comparison {
  trace::CategoryBytes predicted{};
  trace::CategoryBytes measured{};
  std::uint64_t predicted_total = 0;
  std::uint64_t measured_total = 0;

  // (measured - predicted) / predicted: positive when more was needed than predicted.
  double relative_difference() const;
};

SNUG_API Comparison comparison(const trace::Snapshot& predicted, const trace::Snapshot& measured);

// The table "predicted, measured, difference" by category, with the total; a plus says that more was
// measured.
SNUG_API std::string compare(const trace::Snapshot& predicted, const trace::Snapshot& measured);

// What changed between two traces: the peak by category, the regions that grew or shrank most, the operators
// that ran more or less often.
SNUG_API std::string compare(const Summary& before, const Summary& after);

}  // namespace snug::report
