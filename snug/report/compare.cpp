// Differences as signed sizes; rows that do not differ are left out of the lists by region and by operator.
#include "snug/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/report/columns.h"

namespace snug::report {
namespace {

using trace::Snapshot;

constexpr std::size_t kRows = 10;

std::uint64_t distance(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : b - a;
}

// From `from` to `to`, e.g. "+1.0 MiB".
std::string difference(std::uint64_t from, std::uint64_t to) {
  if (from == to) return "same";
  return fmt::format("{}{}", to > from ? '+' : '-', format_bytes(distance(from, to)));
}

double growth(std::uint64_t from, std::uint64_t to) {
  if (from == to) return 0;
  if (from == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(to) / static_cast<double>(from) - 1;
}

Row byte_row(std::string name, std::uint64_t from, std::uint64_t to) {
  Row row = {std::move(name), format_bytes(from), format_bytes(to), difference(from, to)};
  if (from != to && from != 0) row.push_back(fmt::format("{:+.1f} %", 100 * growth(from, to)));
  return row;
}

std::vector<Row> category_rows(Row columns, const Snapshot& from, const Snapshot& to) {
  std::vector<Row> rows = {std::move(columns)};
  for (const trace::Category category : trace::kAllCategories) {
    rows.push_back(byte_row(std::string(name(category)), from[category], to[category]));
  }
  rows.push_back(byte_row("total", from.total, to.total));
  return rows;
}

struct Change {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
};
using Changes = std::map<std::string, Change, std::less<>>;

// The changes by name, largest first; equal entries are dropped.
std::vector<std::pair<std::string, Change>> largest(Changes changes) {
  std::erase_if(changes, [](const auto& entry) { return entry.second.before == entry.second.after; });
  std::vector<std::pair<std::string, Change>> sorted(changes.begin(), changes.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const auto& entry) {
    return distance(entry.second.before, entry.second.after);
  });
  return sorted;
}

template <class MakeRow>
std::string list(std::string_view title, std::string_view nothing, Row columns, Changes changes,
                 MakeRow make_row) {
  const auto sorted = largest(std::move(changes));
  if (sorted.empty()) return fmt::format("\n{}\n", nothing);
  std::vector<Row> rows = {std::move(columns)};
  const std::size_t shown = std::min(kRows, sorted.size());
  for (std::size_t i = 0; i < shown; ++i) rows.push_back(make_row(sorted[i].first, sorted[i].second));
  if (shown < sorted.size()) rows.push_back({fmt::format("and {} more", sorted.size() - shown)});
  return fmt::format("\n{}\n{}", title, align(rows, "lrrrr"));
}

std::string trace_line(std::string_view label, const Summary& summary) {
  return fmt::format("{}: {}, {}, {}, {:.3f} s{}\n", label, fit(summary.info.device, kDeviceWidth),
                     plural(summary.events, "event"), plural(summary.steps, "step"), summary.seconds,
                     summary.cut_short ? ", cut short" : "");
}

}  // namespace

double Comparison::relative_difference() const {
  return growth(predicted_total, measured_total);
}

Comparison comparison(const Snapshot& predicted, const Snapshot& measured) {
  return {predicted.bytes, measured.bytes, predicted.total, measured.total};
}

std::string compare(const Snapshot& predicted, const Snapshot& measured) {
  return align(category_rows({"category", "predicted", "measured", "difference"}, predicted, measured),
               "lrrrr");
}

std::string compare(const Summary& before, const Summary& after) {
  std::string text = trace_line("before", before) + trace_line("after", after);
  text +=
      "\nAt the peak\n" +
      align(category_rows({"category", "before", "after", "difference"}, before.peak, after.peak), "lrrrr");

  Changes regions;
  for (const auto& region : before.peak.regions) regions[region.name].before = region.total();
  for (const auto& region : after.peak.regions) regions[region.name].after = region.total();
  text += list("Regions at the peak, largest change first", "No region changed at the peak.",
               {"region", "before", "after", "difference"}, std::move(regions),
               [](const std::string& name, const Change& change) {
                 return byte_row(region_label(name, kLabelWidth), change.before, change.after);
               });

  Changes operators;
  for (const auto& entry : before.operators) operators[entry.name].before = entry.count;
  for (const auto& entry : after.operators) operators[entry.name].after = entry.count;
  text += list("Operators that ran more or less often", "Every operator ran as often as before.",
               {"operator", "before", "after", "difference"}, std::move(operators),
               [](const std::string& name, const Change& change) -> Row {
                 const auto by =
                     static_cast<std::int64_t>(change.after) - static_cast<std::int64_t>(change.before);
                 return {fit(name, kLabelWidth), fmt::format("{}", change.before),
                         fmt::format("{}", change.after), fmt::format("{:+}", by)};
               });
  return text;
}

}  // namespace snug::report
