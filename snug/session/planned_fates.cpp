#include "snug/session/planned_fates.h"

#include <map>
#include <memory>
#include <optional>
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

using Name = std::pair<std::uint32_t, std::uint32_t>;  // operation and output

struct Region {
  std::map<Name, Planned> listed;
  std::uint64_t planned_bytes = 0;
  // Of this call:
  std::optional<Name> first;
  Name last;
  std::uint64_t bytes = 0;  // made so far
  bool is_other = false;    // it runs operations that the plan does not have, or makes more

  // Tensors of a list that is written in place share one name, so the same name again begins another call
  // only where a call begins with it.
  void begin_if_another(const Name& here) {
    if (!first || here < last || (here == last && here == *first)) {
      first = here;
      bytes = 0;
      is_other = false;
    }
    last = here;
  }
};

struct Regions {
  std::map<std::string, Region, std::less<>> by_name;
  std::function<void(const std::string&)> too_much;
};

Fate fate(Regions& regions, const tape::ValueInfo& value) {
  const auto found = regions.by_name.find(value.outermost);
  if (found == regions.by_name.end()) return Fate::Recompute;
  Region& region = found->second;
  const Name here(value.ordinal, value.output);
  const auto listed = region.listed.find(here);
  if (value.ordinal == tape::ValueInfo::kInput)
    return listed == region.listed.end() ? Fate::Keep : listed->second.fate;
  region.begin_if_another(here);
  const bool was_too_much = region.bytes > region.planned_bytes;
  region.bytes += value.bytes;
  if (region.bytes > region.planned_bytes && !was_too_much) {
    const std::string text =
        concat("region \"", value.outermost, "\" makes more than the ", format_bytes(region.planned_bytes),
               " that were planned for it: a larger batch or a longer sequence than the plan's; plan for the "
               "largest");
    region.is_other = true;
    check(static_cast<bool>(regions.too_much), text);
    regions.too_much(text);
  }
  if (listed != region.listed.end() && listed->second.name != value.operation) region.is_other = true;
  if (region.is_other) return Fate::Recompute;
  return listed == region.listed.end() ? Fate::Keep : listed->second.fate;
}

}  // namespace

tape::Fates planned_fates(const plan::Plan& plan, std::function<void(const std::string&)> too_much) {
  auto regions = std::make_shared<Regions>();
  regions->too_much = std::move(too_much);
  for (const plan::RegionPlan& planned : plan.regions) {
    Region& region = regions->by_name[planned.region];
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
