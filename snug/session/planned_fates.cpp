#include "snug/session/planned_fates.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"

namespace snug::session {

namespace {

using trace::Fate;

struct Region {
  std::set<std::pair<std::uint32_t, std::uint32_t>> recompute;  // operation, output
  std::uint64_t planned_bytes = 0;
  std::uint64_t bytes = 0;  // made so far in this call
  std::pair<std::uint32_t, std::uint32_t> last;
};

using Regions = std::map<std::string, Region, std::less<>>;

Fate fate(Regions& regions, const tape::ValueInfo& value) {
  const auto found = regions.find(value.outermost);
  if (found == regions.end()) return Fate::Recompute;
  Region& region = found->second;
  const std::pair here(value.ordinal, value.output);
  if (here <= region.last) region.bytes = 0;  // another call
  region.last = here;
  region.bytes += value.bytes;
  check(region.bytes <= region.planned_bytes, "region \"", value.outermost, "\" makes more than the ",
        format_bytes(region.planned_bytes),
        " that were planned for it: a larger batch or a longer sequence than the plan's; "
        "plan for the largest");
  return region.recompute.contains(here) ? Fate::Recompute : Fate::Keep;
}

}  // namespace

tape::Fates planned_fates(const plan::Plan& plan) {
  auto regions = std::make_shared<Regions>();
  for (const plan::RegionPlan& planned : plan.regions) {
    Region& region = (*regions)[planned.region];
    region.planned_bytes = planned.bytes;
    for (const plan::ValueName& value : planned.recompute)
      region.recompute.emplace(value.operation, value.output);
  }
  return tape::Fates([regions](const tape::ValueInfo& value) { return fate(*regions, value); });
}

}  // namespace snug::session
