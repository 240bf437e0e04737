// Reports for people: aligned columns, at most 100 characters wide. Exact figures are in JSON.
#pragma once

#include <cstddef>
#include <string>

#include "snug/base/export.h"
#include "snug/report/peak.h"
#include "snug/trace/ledger.h"

namespace snug::report {

struct TableOptions {
  std::size_t regions = 10;  // rows for the largest (region, category) pairs; 0 = the categories alone
};

// Bytes by category with their share of the total, then the largest regions.
SNUG_API std::string table(const trace::Snapshot& snapshot, const TableOptions& options = {});

// The whole report of one trace.
SNUG_API std::string text(const Summary& summary);

}  // namespace snug::report
