// snug report: what a trace says, or what changed between two.
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "snug/report/compare.h"
#include "snug/report/peak.h"
#include "snug/report/text.h"
#include "snug/trace/category_json.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug report snug.trace
      The peak by category and region, the operators that allocated most, what autograd saved.
  snug report before.trace after.trace
      What changed from one to the other.
  snug report runs/tiny-1/trace --json | python3 -m json.tool
      Exact figures.)";

struct Flags {
  std::string trace, other;
  std::string device = "auto";
  bool json = false;
};

Json to_json(const std::vector<report::NamedCount>& entries) {
  Json list = Json::array();
  for (const auto& entry : entries) {
    list.push_back({{"name", entry.name}, {"count", entry.count}, {"bytes", entry.bytes}});
  }
  return list;
}

Json to_json(const report::Summary& summary) {
  Json regions = Json::array();
  for (const auto& region : summary.peak.regions) {
    regions.push_back(
        {{"name", region.name}, {"total_bytes", region.total()}, {"bytes", trace::to_json(region.bytes)}});
  }
  return {{"device", summary.info.device},
          {"about", summary.info.about},
          {"events", summary.events},
          {"steps", summary.steps},
          {"seconds", summary.seconds},
          {"cut_short", summary.cut_short},
          {"peak_bytes", summary.peak.total},
          {"bytes", trace::to_json(summary.peak.bytes)},
          {"regions", std::move(regions)},
          {"highest_alone_bytes", trace::to_json(summary.category_peaks)},
          {"live_at_end_bytes", summary.live_at_end},
          {"operators", to_json(summary.operators)},
          {"saves", to_json(summary.saves)},
          {"unpacks", to_json(summary.unpacks)},
          {"copies", to_json(summary.copies)}};
}

void run(const Flags& flags) {
  parse_device(flags.device, /*must_exist=*/false);
  const report::Summary first = report::summarise(flags.trace);
  if (flags.other.empty()) {
    flags.json ? print_json(to_json(first)) : print(report::text(first));
    return;
  }
  const report::Summary second = report::summarise(flags.other);
  flags.json ? print_json(Json{{"before", to_json(first)}, {"after", to_json(second)}})
             : print(report::compare(first, second));
}

}  // namespace

void add_report(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "report", "Read a trace: what was alive at the peak, and why", kExamples,
                            [flags] { run(*flags); });
  add_argument(verb, "TRACE", flags->trace,
               "A trace that 'snug profile' wrote, or 'trace' of a run directory");
  add_argument(verb, "TRACE2", flags->other, "A second trace: show what changed from the first",
               /*required=*/false);
  add_text(verb, "--device", "auto|cpu|cuda[:i]", flags->device,
           "Accepted as by every verb; reading a trace needs no device");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
