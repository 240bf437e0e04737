#include "snug/session/planned_fates.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"

namespace snug::session {

namespace {

using trace::Fate;

struct Region {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> recompute;  // operation, output: its name
  bool is_other = false;  // this call runs operations that the plan does not have
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
  if (here <= region.last) {  // another call
    region.bytes = 0;
    region.is_other = false;
  }
  region.last = here;
  region.bytes += value.bytes;
  check(region.bytes <= region.planned_bytes, "region \"", value.outermost, "\" makes more than the ",
        format_bytes(region.planned_bytes),
        " that were planned for it: a larger batch or a longer sequence than the plan's; "
        "plan for the largest");
  const auto listed = region.recompute.find(here);
  if (listed != region.recompute.end() && listed->second != value.operation) region.is_other = true;
  return listed != region.recompute.end() || region.is_other ? Fate::Recompute : Fate::Keep;
}

}  // namespace

tape::Fates planned_fates(const plan::Plan& plan) {
  auto regions = std::make_shared<Regions>();
  for (const plan::RegionPlan& planned : plan.regions) {
    Region& region = (*regions)[planned.region];
    region.planned_bytes = planned.bytes;
    for (const plan::ValueName& value : planned.recompute)
      region.recompute.emplace(std::pair(value.operation, value.output), value.name);
  }
  return tape::Fates([regions](const tape::ValueInfo& value) { return fate(*regions, value); });
}

}  // namespace snug::session
