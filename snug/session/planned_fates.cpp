#include "snug/session/planned_fates.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"

namespace snug::session {

namespace {

using trace::Fate;
using Name = std::pair<std::uint32_t, std::uint32_t>;  // operation and output

struct Region {
  plan::RegionPlan planned;
  std::map<Name, std::pair<Fate, std::string>> listed;  // with the operation's name
  // Of this call:
  std::optional<Name> first;
  Name last;
  std::uint64_t bytes = 0;  // made so far
  bool is_other = false;    // from here on

  // Tensors of a list that is written in place share one name, so the same name again begins another call
  // only where a call begins with it.
  bool begins(const Name& here) const { return !first || here < last || (here == last && here == *first); }
};

struct Planned {
  std::map<std::string, std::vector<Region>, std::less<>> regions;  // by name, one for each structure
  std::int64_t passes = 1;
  DifferenceListener listener;

  Region* region_of(const tape::ValueInfo& value);
  Fate fate(const tape::ValueInfo& value);
  void count(Region& region, const tape::ValueInfo& value);
  void differs(Region& region, Difference difference, const std::string& how);
};

void Planned::differs(Region& region, Difference difference, const std::string& how) {
  if (std::exchange(region.is_other, true)) return;
  if (listener) listener(difference, concat("region \"", region.planned.region, "\" ", how));
}

void Planned::count(Region& region, const tape::ValueInfo& value) {
  const Name here(value.ordinal, value.output);
  const plan::RegionPlan& planned = region.planned;
  const bool begins = region.begins(here);
  if (begins) {
    region.first = here;
    region.bytes = 0;
    region.is_other = false;
    if (value.pass > 0 && passes == 1)
      differs(region, Difference::Larger, "runs in a second pass of a step that was planned as one");
  }
  region.last = here;
  region.bytes += value.bytes;
  const bool begins_larger = begins && planned.first_bytes > 0 && value.bytes > planned.first_bytes;
  if (begins_larger || region.bytes > planned.bytes)
    differs(region, Difference::Larger,
            concat("makes more than the ", format_bytes(planned.bytes),
                   " that were planned for it: a larger batch or a longer sequence than the plan's"));
  const auto listed = region.listed.find(here);
  const std::string_view expected = value.ordinal < planned.operations.size()
                                        ? std::string_view(planned.operations[value.ordinal])
                                    : listed != region.listed.end() ? std::string_view(listed->second.second)
                                                                    : std::string_view();
  const bool is_beyond = !planned.operations.empty() && value.ordinal >= planned.operations.size();
  if (is_beyond || (!expected.empty() && expected != value.operation))
    differs(region, Difference::Other,
            concat("runs ", value.operation, " where the plan has ", is_beyond ? "nothing more" : expected));
}

// Further passes than the plan has begin again with its first.
Region* Planned::region_of(const tape::ValueInfo& value) {
  const auto found = regions.find(value.outermost);
  if (found == regions.end()) return nullptr;
  for (Region& region : found->second)
    if (std::ranges::find(region.planned.passes, value.pass % passes) != region.planned.passes.end())
      return &region;
  return &found->second.front();
}

Fate Planned::fate(const tape::ValueInfo& value) {
  Region* const planned = region_of(value);
  if (!planned) return Fate::Recompute;
  Region& region = *planned;
  const bool is_input = value.ordinal == tape::ValueInfo::kInput;
  if (!is_input) count(region, value);
  if (!is_input && region.is_other) return Fate::Recompute;
  const auto listed = region.listed.find(Name(value.ordinal, value.output));
  return listed == region.listed.end() ? Fate::Keep : listed->second.first;
}

}  // namespace

tape::Fates planned_fates(const plan::Plan& plan, DifferenceListener listener) {
  auto planned = std::make_shared<Planned>();
  planned->listener = std::move(listener);
  planned->passes = std::max<std::int64_t>(1, plan.setting.accumulation);
  for (const plan::RegionPlan& region_plan : plan.regions) {
    Region& region = planned->regions[region_plan.region].emplace_back();
    region.planned = region_plan;
    const auto list = [&](const std::vector<plan::ValueName>& values, Fate fate) {
      for (const plan::ValueName& value : values)
        region.listed.emplace(Name(value.operation, value.output), std::pair(fate, value.name));
    };
    list(region_plan.recompute, Fate::Recompute);
    list(region_plan.offload, Fate::Offload);
  }
  return tape::Fates([planned](const tape::ValueInfo& value) { return planned->fate(value); });
}

}  // namespace snug::session
