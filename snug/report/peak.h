// What a trace says about memory, gathered in one pass in constant memory.
//
//   Summary summary = summarise("step.trace");
//   fmt::print("{}", text(summary));     // text.h
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/ledger.h"
#include "snug/trace/trace.h"

namespace snug::report {

struct NamedCount {
  std::string name;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;

  bool operator==(const NamedCount&) const = default;
};

struct Summary {
  std::uint64_t events = 0;
  std::uint64_t steps = 0;  // marks whose name starts with "step "
  trace::Snapshot peak;
  trace::CategoryBytes category_peaks{};
  std::uint64_t live_at_end = 0;
  // Largest bytes first. An operator's bytes are what was allocated since the operator or mark before it.
  std::vector<NamedCount> operators;
  std::vector<NamedCount> saves;    // by region
  std::vector<NamedCount> unpacks;  // by region; bytes as saved, where the trace says so
  std::vector<NamedCount> copies;   // by direction
  double seconds = 0;               // from the beginning of the trace to its last event
  bool cut_short = false;           // everything above ends at the cut
  trace::TraceInfo info;
};

// Throws Error for a file that cannot be read or whose events contradict one another.
SNUG_API Summary summarise(const std::filesystem::path& trace);

}  // namespace snug::report
