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

struct Planned {
  Fate fate;
  std::string name;
};

struct Region {
  std::map<std::pair<std::uint32_t, std::uint32_t>, Planned> listed;  // by operation and output
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
  const auto listed = region.listed.find(here);
  if (value.ordinal == tape::ValueInfo::kInput)
    return listed == region.listed.end() ? Fate::Keep : listed->second.fate;
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
  if (listed != region.listed.end() && listed->second.name != value.operation) region.is_other = true;
  if (region.is_other) return Fate::Recompute;
  return listed == region.listed.end() ? Fate::Keep : listed->second.fate;
}

}  // namespace

tape::Fates planned_fates(const plan::Plan& plan) {
  auto regions = std::make_shared<Regions>();
  for (const plan::RegionPlan& planned : plan.regions) {
    Region& region = (*regions)[planned.region];
    region.planned_bytes = planned.bytes;
    const auto list = [&](const std::vector<plan::ValueName>& values, Fate fate) {
      for (const plan::ValueName& value : values)
        region.listed.emplace(std::pair(value.operation, value.output), Planned{fate, value.name});
    };
    list(planned.recompute, Fate::Recompute);
    list(planned.offload, Fate::Offload);
  }
  return tape::Fates([regions](const tape::ValueInfo& value) { return fate(*regions, value); });
}

}  // namespace snug::session
