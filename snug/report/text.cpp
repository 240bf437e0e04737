// The text of one trace's report, from its heading down to its operators.
#include "snug/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/report/columns.h"

namespace snug::report {
namespace {

using trace::Category;
using trace::CategoryBytes;
using trace::Snapshot;

constexpr std::size_t kOperatorRows = 15;
constexpr std::size_t kRegionRows = 10;

// `alone`: the highest each category reached by itself, or nullptr for no such column.
std::string categories(const Snapshot& snapshot, const CategoryBytes* alone) {
  std::vector<Row> rows = {{"category", "bytes", "share"}};
  if (alone != nullptr) rows[0].push_back("highest alone");
  for (const Category category : trace::kAllCategories) {
    Row row = {std::string(name(category)), format_bytes(snapshot[category]),
               percent(static_cast<double>(snapshot[category]), static_cast<double>(snapshot.total))};
    if (alone != nullptr) row.push_back(format_bytes((*alone)[static_cast<std::size_t>(category)]));
    rows.push_back(std::move(row));
  }
  const auto total = static_cast<double>(snapshot.total);
  rows.push_back({"total", format_bytes(snapshot.total), percent(total, total)});
  return align(rows, "lrrr");
}

struct Part {
  std::string_view region;
  Category category;
  std::uint64_t bytes;
};

std::string regions(const Snapshot& snapshot, std::size_t count) {
  std::vector<Part> parts;
  for (const Snapshot::Region& region : snapshot.regions) {
    for (const Category category : trace::kAllCategories) {
      const std::uint64_t bytes = region.bytes[static_cast<std::size_t>(category)];
      if (bytes > 0) parts.push_back({region.name, category, bytes});
    }
  }
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::bytes);

  std::vector<Row> rows = {{"region", "category", "bytes", "share"}};
  const auto total = static_cast<double>(snapshot.total);
  const std::size_t shown = std::min(count, parts.size());
  for (const Part& part : std::span(parts).first(shown)) {
    rows.push_back({region_label(part.region, kLabelWidth), std::string(name(part.category)),
                    format_bytes(part.bytes), percent(static_cast<double>(part.bytes), total)});
  }
  if (shown < parts.size()) {
    std::uint64_t rest = 0;
    for (const Part& part : std::span(parts).subspan(shown)) rest += part.bytes;
    rows.push_back({fmt::format("and {} more", parts.size() - shown), "", format_bytes(rest),
                    percent(static_cast<double>(rest), total)});
  }
  return align(rows, "llrr");
}

// "3 steps", or "the first 3 of 10 steps" where the run had more than the trace.
std::string steps(const Summary& summary) {
  const auto planned = summary.info.about.find("steps");
  if (planned == summary.info.about.end() || !planned->is_number_integer() || *planned <= summary.steps)
    return plural(summary.steps, "step");
  return fmt::format("the first {} of {} steps", summary.steps, planned->get<std::uint64_t>());
}

// What is counted over the whole trace says so.
std::string summed(std::string_view title, const Summary& summary) {
  return summary.steps > 0 ? fmt::format("{}, over {}", title, plural(summary.steps, "step"))
                           : std::string(title);
}

std::string heading(const Summary& summary) {
  std::string text = fmt::format("{}: {}, {}, {:.3f} s\n", fit(summary.info.device, kDeviceWidth),
                                 plural(summary.events, "event"), steps(summary), summary.seconds);
  for (const auto& [key, value] : summary.info.about.items()) {
    const std::string shown = value.is_string() ? value.get<std::string>()
                                                : value.dump(-1, ' ', false, Json::error_handler_t::replace);
    text += fit(fmt::format("{}: {}", key, shown), kLineWidth) + '\n';
  }
  if (summary.cut_short) text += "note: the trace was cut short; everything below ends at the cut\n";
  text += fmt::format("peak {}, live at the end {}\n", format_bytes(summary.peak.total),
                      format_bytes(summary.live_at_end));
  return text;
}

// A titled list of counts, or nothing when there are none.
std::string counts(std::string_view title, Row columns, const std::vector<NamedCount>& entries,
                   std::size_t count) {
  if (entries.empty()) return "";
  std::vector<Row> rows = {std::move(columns)};
  const std::size_t shown = std::min(count, entries.size());
  for (const NamedCount& entry : std::span(entries).first(shown)) {
    rows.push_back(
        {region_label(entry.name, kLabelWidth), fmt::format("{}", entry.count), format_bytes(entry.bytes)});
  }
  if (shown < entries.size()) rows.push_back({fmt::format("and {} more", entries.size() - shown)});
  return fmt::format("\n{}\n{}", title, align(rows, "lrr"));
}

}  // namespace

std::string table(const Snapshot& snapshot, const TableOptions& options) {
  std::string text = categories(snapshot, nullptr);
  if (options.regions > 0 && snapshot.total > 0) text += '\n' + regions(snapshot, options.regions);
  return text;
}

std::string text(const Summary& summary) {
  std::string text = heading(summary);
  text += "\nAt the peak\n" + categories(summary.peak, &summary.category_peaks);
  if (summary.peak.total > 0) text += '\n' + regions(summary.peak, kRegionRows);
  text += counts(summed("Operators", summary), {"operator", "calls", "allocated"}, summary.operators,
                 kOperatorRows);
  text += counts(summed("Saved for the backward", summary), {"region", "tensors", "bytes"}, summary.saves,
                 kRegionRows);
  text += counts(summed("Asked for by the backward", summary), {"region", "tensors", "bytes"},
                 summary.unpacks, kRegionRows);
  text += counts(summed("Copied", summary), {"direction", "copies", "bytes"}, summary.copies, kRegionRows);
  return text;
}

}  // namespace snug::report
