// What was decided for a step: its setting, and which values of which region are recomputed or offloaded.
// Plain data, read and written as JSON; a plan may be saved, compared, edited by hand and applied again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/plan/setting.h"
#include "snug/trace/region_tape.h"

namespace snug::plan {

// Written "4.0 aten::mul.Tensor": the operation's number in its region, the number of its result, its name.
// "input 2": the third of what comes into the region.
struct ValueName {
  static constexpr std::uint32_t kInput = trace::TapeValue::kOutside;
  std::uint32_t operation = 0;
  std::uint32_t output = 0;
  std::string name;

  bool operator==(const ValueName&) const = default;
};

struct RegionPlan {
  std::string region;
  std::uint64_t structure = 0;       // trace::RegionTape::structure_hash()
  std::vector<std::int64_t> passes;  // of the step that have this structure; empty: all
  std::uint64_t bytes = 0;           // of all that the region makes: more was not planned for
  std::uint64_t first_bytes = 0;  // of the first of it: a call that begins with more is larger; 0: not known
  std::vector<std::string> operations;  // by their numbers; empty: not known
  std::vector<ValueName> recompute;
  std::vector<ValueName> offload;

  bool operator==(const RegionPlan&) const = default;
};

struct Amount {
  std::uint64_t peak_bytes = 0;
  double step_seconds = 0;
  std::uint64_t host_bytes = 0;     // of what is offloaded, and of what waits there between steps
  std::uint64_t outside_bytes = 0;  // of the peak: context, libraries, page tables; no allocator of torch's
  std::uint64_t tensor_bytes = 0;   // of the peak: what a tracker sees; 0: not known

  bool operator==(const Amount&) const = default;
};

struct Lever {
  std::string name;              // of a LeverKind, or recompute, offload
  std::int64_t saved_bytes = 0;  // below 0: it takes more, and is there for what comes with it
  double cost_seconds = 0;       // below 0: it is faster

  bool operator==(const Lever&) const = default;
};

struct Plan {
  Json step = Json::object();  // what it is for, as its maker says: compared when the plan is applied
  std::uint64_t budget_bytes = 0;
  Setting setting;
  Amount plain, predicted;
  double bound_seconds = 0;  // no plan within the budget is faster
  std::vector<Lever> levers;
  std::vector<RegionPlan> regions;
  // Which of its algorithms cuBLASLt computed a product with, by what the product is: noted by a run under
  // this plan, whose bits depend on it. Empty where nothing ran yet, and on the CPU.
  std::map<std::string, std::int64_t> products;

  bool operator==(const Plan&) const = default;
};

SNUG_API Json to_json(const Plan& plan);
SNUG_API Json to_json(const Setting& setting);
SNUG_API Json to_json(const std::vector<Lever>& levers);
// Throws Error, naming `where` and the key, for what is missing, unknown, of the wrong type or senseless.
SNUG_API Plan plan_from_json(Json object, const std::string& where,
                             std::span<const LeverKind> kinds = kLevers);

SNUG_API Plan load_plan(const std::filesystem::path& path);
SNUG_API void save_plan(const Plan& plan, const std::filesystem::path& path);

// Of all that is made in the region, whatever its fate.
SNUG_API std::uint64_t made_bytes(const trace::RegionTape& tape);

// Throws Error if this is no region of the plan, or which value it does not have.
SNUG_API void check_matches(const Plan& plan, const trace::RegionTape& tape);

}  // namespace snug::plan
