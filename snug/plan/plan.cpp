#include "snug/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "snug/base/output_file.h"

namespace snug::plan {

namespace {

constexpr std::int64_t kVersion = 5;

constexpr std::string_view kInputWord = "input ";

std::string text(const ValueName& value) {
  if (value.operation == ValueName::kInput) return fmt::format("{}{}", kInputWord, value.output);
  return fmt::format("{}.{} {}", value.operation, value.output, value.name);
}

// "4.0 aten::mul.Tensor"
bool parse_made(std::string_view written, ValueName& value) {
  const char* const end = written.data() + written.size();
  const auto [point, bad_operation] = std::from_chars(written.data(), end, value.operation);
  if (bad_operation != std::errc() || point == end || *point != '.') return false;
  const auto [space, bad_output] = std::from_chars(point + 1, end, value.output);
  if (bad_output != std::errc() || space == end || *space != ' ' || space + 1 == end) return false;
  value.name.assign(space + 1, end);
  return value.operation != ValueName::kInput;
}

// "input 2"
bool parse_input(std::string_view written, ValueName& value) {
  value = {.operation = ValueName::kInput};
  if (!written.starts_with(kInputWord)) return false;
  const char* const end = written.data() + written.size();
  const auto [stop, bad] = std::from_chars(written.data() + kInputWord.size(), end, value.output);
  return bad == std::errc() && stop == end;
}

std::vector<ValueName> values(Json list, const std::string& key, const std::string& where) {
  std::vector<ValueName> values;
  for (const Json& entry : list) {
    check(entry.is_string(), where, ": \"", key, "\" must list texts such as \"4.0 aten::mul.Tensor\", got ",
          entry.dump());
    const auto written = entry.get<std::string>();
    ValueName value;
    const bool is_good = (key == "offload" && parse_input(written, value)) || parse_made(written, value);
    check(is_good, where, ": expected a value such as \"4.0 aten::mul.Tensor\", got \"", written, "\"");
    values.push_back(std::move(value));
  }
  return values;
}

Json texts(const std::vector<ValueName>& values) {
  Json list = Json::array();
  for (const ValueName& value : values) list.push_back(text(value));
  return list;
}

std::uint64_t parse_structure(const std::string& written, const std::string& where) {
  std::uint64_t structure = 0;
  const char* const end = written.data() + written.size();
  const auto [stop, bad] = std::from_chars(written.data(), end, structure, 16);
  check(bad == std::errc() && stop == end && written.size() == 16, where,
        ": \"structure\" must be 16 hexadecimal digits, got \"", written, "\"");
  return structure;
}

std::uint64_t bytes(const JsonReader& reader, const std::string& key, const std::string& where) {
  const auto value = reader.required<std::int64_t>(key);
  check(value >= 0, where, ": \"", key, "\" must be at least 0, got ", value);
  return static_cast<std::uint64_t>(value);
}

double seconds(const JsonReader& reader, const std::string& key, const std::string& where) {
  const auto value = reader.required<double>(key);
  check(std::isfinite(value) && value >= 0, where, ": \"", key, "\" must be at least 0, got ", value);
  return value;
}

std::int64_t count(const JsonReader& reader, const std::string& key, const std::string& where) {
  const auto value = reader.required<std::int64_t>(key);
  check(value >= 1, where, ": \"", key, "\" must be at least 1, got ", value);
  return value;
}

Json array(const JsonReader& reader, const std::string& key, const std::string& where) {
  Json value = reader.required<Json>(key);
  check(value.is_array(), where, ": \"", key, "\" must be a list, got ", value.dump());
  return value;
}

Json to_json(const Amount& amount, bool is_chosen) {
  Json json = {{"peak_bytes", amount.peak_bytes}, {"step_seconds", amount.step_seconds}};
  if (!is_chosen) return json;
  json["host_bytes"] = amount.host_bytes;
  json["outside_bytes"] = amount.outside_bytes;
  json["tensor_bytes"] = amount.tensor_bytes;
  return json;
}

Amount amount_from_json(Json object, const std::string& where, bool is_chosen) {
  const JsonReader reader(std::move(object), where);
  const Amount amount{bytes(reader, "peak_bytes", where), seconds(reader, "step_seconds", where),
                      is_chosen ? bytes(reader, "host_bytes", where) : 0,
                      is_chosen ? bytes(reader, "outside_bytes", where) : 0,
                      is_chosen ? bytes(reader, "tensor_bytes", where) : 0};
  reader.refuse_unread();
  return amount;
}

Lever lever_from_json(Json object, const std::string& where) {
  const JsonReader reader(std::move(object), where);
  Lever lever{.name = reader.required<std::string>("name"),
              .saved_bytes = reader.required<std::int64_t>("saved_bytes"),
              .cost_seconds = reader.required<double>("cost_seconds")};
  check(std::isfinite(lever.cost_seconds), where, ": \"cost_seconds\" must be finite, got ",
        lever.cost_seconds);
  reader.refuse_unread();
  return lever;
}

// Each lever has a key of its own.
Setting setting_from_json(const JsonReader& reader, const std::string& where,
                          std::span<const LeverKind> kinds) {
  Setting setting{.accumulation = count(reader, "accumulation", where)};
  for (const LeverKind& kind : kinds) {
    const auto value = reader.required<std::int64_t>(kind.name);
    check(value >= kind.plain, where, ": \"", kind.name, "\" must be ", kind.plain,
          kind.plain == 0 ? " (as usual)" : "", " or more, got ", value);
    setting.levers[kind.name] = value;
  }
  return setting;
}

// Regions that do the same stand together.
Json to_json(const std::vector<RegionPlan>& regions) {
  Json groups = Json::array();
  std::vector<const RegionPlan*> first;
  for (const RegionPlan& region : regions) {
    const auto same = std::ranges::find_if(first, [&](const RegionPlan* other) {
      return other->structure == region.structure && other->passes == region.passes &&
             other->bytes == region.bytes && other->first_bytes == region.first_bytes &&
             other->operations == region.operations && other->recompute == region.recompute &&
             other->offload == region.offload;
    });
    if (same != first.end()) {
      groups[static_cast<std::size_t>(same - first.begin())]["regions"].push_back(region.region);
      continue;
    }
    first.push_back(&region);
    groups.push_back({{"regions", Json::array({region.region})},
                      {"structure", fmt::format("{:016x}", region.structure)},
                      {"bytes", region.bytes},
                      {"first_bytes", region.first_bytes},
                      {"operations", region.operations},
                      {"recompute", texts(region.recompute)},
                      {"offload", texts(region.offload)}});
    if (!region.passes.empty()) groups.back()["passes"] = region.passes;
  }
  return groups;
}

std::vector<std::string> names(const JsonReader& reader, const std::string& key, const std::string& where) {
  std::vector<std::string> names;
  for (const Json& name : array(reader, key, where)) {
    check(name.is_string(), where, ": \"", key, "\" must list names, got ", name.dump());
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<std::int64_t> passes_from_json(const JsonReader& reader, const std::string& where) {
  std::vector<std::int64_t> passes;
  const Json list = reader.optional<Json>("passes", Json::array());
  check(list.is_array(), where, ": \"passes\" must be a list, got ", list.dump());
  for (const Json& pass : list) {
    check(pass.is_number_integer() && pass >= 0, where, ": \"passes\" must list numbers of passes, got ",
          pass.dump());
    passes.push_back(pass.get<std::int64_t>());
  }
  return passes;
}

bool share_a_pass(const RegionPlan& a, const RegionPlan& b) {
  return a.passes.empty() || b.passes.empty() ||
         std::ranges::find_first_of(a.passes, b.passes) != a.passes.end();
}

void regions_from_json(Json object, const std::string& where, std::vector<RegionPlan>& regions) {
  const JsonReader reader(std::move(object), where);
  RegionPlan region{.structure = parse_structure(reader.required<std::string>("structure"), where),
                    .passes = passes_from_json(reader, where),
                    .bytes = bytes(reader, "bytes", where),
                    .first_bytes = bytes(reader, "first_bytes", where),
                    .recompute = values(array(reader, "recompute", where), "recompute", where),
                    .offload = values(array(reader, "offload", where), "offload", where)};
  region.operations = names(reader, "operations", where);
  for (std::string& name : names(reader, "regions", where)) {
    region.region = std::move(name);
    for (const RegionPlan& other : regions)
      check(other.region != region.region || !share_a_pass(other, region), where, ": region \"",
            region.region, "\" is planned twice");
    regions.push_back(region);
  }
  reader.refuse_unread();
}

}  // namespace

Json to_json(const std::vector<Lever>& levers) {
  Json list = Json::array();
  for (const Lever& lever : levers)
    list.push_back(
        {{"name", lever.name}, {"saved_bytes", lever.saved_bytes}, {"cost_seconds", lever.cost_seconds}});
  return list;
}

Json to_json(const Setting& setting) {
  Json json = setting.levers;
  json["accumulation"] = setting.accumulation;
  return json;
}

Json to_json(const Plan& plan) {
  Json json = {{"version", kVersion}, {"step", plan.step}, {"budget_bytes", plan.budget_bytes}};
  json.update(to_json(plan.setting));
  json.update({{"plain", to_json(plan.plain, /*is_chosen=*/false)},
               {"predicted", to_json(plan.predicted, /*is_chosen=*/true)},
               {"bound_seconds", plan.bound_seconds},
               {"levers", to_json(plan.levers)},
               {"fates", to_json(plan.regions)}});
  if (!plan.products.empty()) json["products"] = plan.products;
  return json;
}

Plan plan_from_json(Json object, const std::string& where, std::span<const LeverKind> kinds) {
  const JsonReader reader(std::move(object), where);
  const auto version = reader.required<std::int64_t>("version");
  check(version == kVersion, where, ": a plan of version ", version, ", expected ", kVersion);
  Plan plan{.step = reader.required<Json>("step"),
            .budget_bytes = static_cast<std::uint64_t>(count(reader, "budget_bytes", where)),
            .setting = setting_from_json(reader, where, kinds),
            .plain = amount_from_json(reader.required<Json>("plain"), where + ": plain", false),
            .predicted = amount_from_json(reader.required<Json>("predicted"), where + ": predicted", true),
            .bound_seconds = seconds(reader, "bound_seconds", where)};
  check(plan.step.is_object(), where, ": \"step\" must be an object, got ", plan.step.dump());
  for (Json& lever : array(reader, "levers", where))
    plan.levers.push_back(lever_from_json(std::move(lever), where + ": levers"));
  for (Json& group : array(reader, "fates", where))
    regions_from_json(std::move(group), where + ": fates", plan.regions);
  const Json products = reader.optional<Json>("products", Json::object());
  check(products.is_object(), where, ": \"products\" must be an object, got ", products.dump());
  for (const auto& [product, number] : products.items()) {
    check(number.is_number_integer(), where, ": products: expected the number of an algorithm, got ",
          number.dump());
    plan.products[product] = number.get<std::int64_t>();
  }
  reader.refuse_unread();
  return plan;
}

Plan load_plan(const std::filesystem::path& path) {
  return plan_from_json(read_json(path), path.string());
}

void save_plan(const Plan& plan, const std::filesystem::path& path) {
  OutputFile file(path);
  file.write(to_json(plan).dump(1) + "\n");
  file.close();
}

std::uint64_t made_bytes(const trace::RegionTape& tape) {
  std::uint64_t bytes = 0;
  for (const trace::TapeValue& value : tape.values)
    if (value.operation != trace::TapeValue::kOutside) bytes += value.bytes;
  return bytes;
}

namespace {

void check_matches(const RegionPlan& plan, const trace::RegionTape& tape) {
  check(plan.structure == tape.structure_hash(), "the plan is for another model: region \"", plan.region,
        "\" computes something else than the plan says (structure ",
        fmt::format("{:016x}, planned {:016x}", tape.structure_hash(), plan.structure), ")");
  check(made_bytes(tape) <= plan.bytes, "the plan is for smaller shapes: region \"", plan.region, "\" makes ",
        made_bytes(tape), " bytes, planned ", plan.bytes);
  std::set<std::pair<std::uint32_t, std::uint32_t>> made;
  for (const trace::TapeValue& value : tape.values) made.emplace(value.operation, value.output);
  const auto check_is_there = [&](const char* does, const ValueName& value) {
    const bool has_name =
        value.operation == ValueName::kInput ||
        (value.operation < tape.operations.size() && tape.operations[value.operation].name == value.name);
    check(has_name && made.contains({value.operation, value.output}), "the plan ", does, " value ",
          text(value), " of region \"", plan.region, "\", which has no such value");
  };
  for (const ValueName& value : plan.recompute) {
    check_is_there("recomputes", value);
    check(value.operation == ValueName::kInput || tape.operations[value.operation].replayable,
          "the plan recomputes value ", text(value), " of region \"", plan.region, "\", which must be kept");
  }
  for (const ValueName& value : plan.offload) check_is_there("offloads", value);
}

}  // namespace

void check_matches(const Plan& plan, const trace::RegionTape& tape) {
  const RegionPlan* planned = nullptr;  // of several the one with this structure
  for (const RegionPlan& region : plan.regions)
    if (region.region == tape.region && (!planned || region.structure == tape.structure_hash()))
      planned = &region;
  if (!planned) fail("the plan is for another model: it has no region \"", tape.region, "\"");
  check_matches(*planned, tape);
}

}  // namespace snug::plan
