#include "snug/report/recomputed.h"

#include <fmt/format.h>

#include "snug/base/bytes.h"
#include "snug/report/columns.h"

namespace snug::report {
namespace {

using trace::RegionTotals;

struct Line {
  std::string kind;  // "layers."; the whole name where it has no number
  std::size_t regions = 0;
  RegionTotals totals;  // of one of them; times are those of all
};

std::string kind_of(const std::string& region) {
  const std::size_t digits = region.find_last_not_of("0123456789") + 1;
  return digits == region.size() ? region : region.substr(0, digits);
}

bool same_bytes(const RegionTotals& a, const RegionTotals& b) {
  return a.kept_bytes == b.kept_bytes && a.offloaded_bytes == b.offloaded_bytes &&
         a.dropped_bytes == b.dropped_bytes && a.replays == b.replays;
}

std::vector<Line> lines(const trace::Totals& totals) {
  std::vector<Line> lines;
  for (const auto& [region, some] : totals) {
    const std::string kind = kind_of(region);
    Line* home = nullptr;
    for (Line& line : lines)
      if (line.kind == kind && same_bytes(line.totals, some)) home = &line;
    if (!home) {
      lines.push_back({kind, 0, some});
      home = &lines.back();
      home->totals.replay_seconds = 0;
    }
    ++home->regions;
    home->totals.replay_seconds += some.replay_seconds;
  }
  return lines;
}

std::string label(const Line& line) {
  if (line.regions == 1 && !line.kind.ends_with('.')) return region_label(line.kind, kLabelWidth);
  return fmt::format("{}* ({})", region_label(line.kind, kLabelWidth), line.regions);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.1f} ms", seconds * 1e3);
}

}  // namespace

std::string recomputed(const trace::Totals& totals, std::uint64_t forwards, std::uint64_t steps) {
  if (totals.empty() || forwards == 0 || steps == 0) return "";
  std::vector<Row> rows = {{"region", "kept", "on the host", "recomputed", "operations", "time per step"}};
  for (const Line& line : lines(totals))
    rows.push_back({label(line), format_bytes(line.totals.kept_bytes / forwards),
                    format_bytes(line.totals.offloaded_bytes / forwards),
                    format_bytes(line.totals.dropped_bytes / forwards),
                    fmt::format("{}", line.totals.replays / forwards),
                    milliseconds(line.totals.replay_seconds / static_cast<double>(steps))});
  std::string text = align(rows, "lrrrrr");

  RegionTotals all;
  for (const auto& [region, some] : totals) all += some;
  for (const auto& [why, what] : all.refused)
    text += fmt::format("kept against its fate: {} of {}: {}\n", format_bytes(what.bytes / forwards),
                        why.first.empty() ? "offloaded values" : why.first, why.second);
  return text;
}

}  // namespace snug::report
