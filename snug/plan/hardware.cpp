// Hardware as JSON, each key named like its field, and what each may be.
#include "snug/plan/hardware.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "snug/base/error.h"
#include "snug/base/output_file.h"

namespace snug::plan {
namespace {

struct Rate {
  const char* key;
  double Hardware::*field;
};

constexpr Rate kRates[] = {
    {"matmul_flops_fp32", &Hardware::matmul_flops_fp32},
    {"matmul_flops_bf16", &Hardware::matmul_flops_bf16},
    {"attention_flops", &Hardware::attention_flops},
    {"memory_rate", &Hardware::memory_rate},
    {"adam_rate", &Hardware::adam_rate},
    {"peer_rate", &Hardware::peer_rate},
    {"network_rate", &Hardware::network_rate},
};
constexpr Rate kLinks[] = {
    {"to_host_rate", &Hardware::to_host_rate},
    {"to_device_rate", &Hardware::to_device_rate},
    {"both_ways_rate", &Hardware::both_ways_rate},
};
constexpr Rate kMayBeZero[] = {
    {"copy_slowdown", &Hardware::copy_slowdown},
    {"operation_seconds", &Hardware::operation_seconds},
    {"disk_rate", &Hardware::disk_rate},
};

std::uint64_t read_bytes(const JsonReader& json, const char* key, const std::string& where) {
  const auto bytes = json.required<std::int64_t>(key);
  check(bytes >= 0, where, ": ", key, " must be at least 0, got ", bytes);
  return static_cast<std::uint64_t>(bytes);
}

void check_positive(double value, const char* key, const std::string& where) {
  check(std::isfinite(value) && value > 0, where, ": ", key, " must be finite and above 0, got ", value);
}

void check_not_negative(double value, const char* key, const std::string& where) {
  check(std::isfinite(value) && value >= 0, where, ": ", key, " must be finite and at least 0, got ", value);
}

MeasuredOperator operator_from_json(Json object, const std::string& where) {
  const JsonReader json(std::move(object), where);
  MeasuredOperator measured{.work = {.name = json.required<std::string>("name"),
                                     .flops = json.required<double>("flops"),
                                     .bytes = json.required<double>("bytes"),
                                     .low_precision = json.required<bool>("low_precision"),
                                     .is_attention = json.required<bool>("is_attention")},
                            .seconds = json.required<double>("seconds")};
  json.refuse_unread();
  return measured;
}

// A default would pass for a measurement, and a probe takes seconds.
void check_complete(const Json& object, const std::string& where) {
  if (!object.is_object()) return;  // the reader's to refuse
  const Json all = to_json(Hardware{});
  for (const auto& [key, value] : all.items())
    check(object.contains(key), where, ": \"", key,
          "\" is missing; if an older snug wrote this file, run 'snug probe' again");
}

}  // namespace

Hardware load_hardware(const std::string& name_or_path) {
  for (const Hardware& preset : presets()) {
    if (preset.name == name_or_path) return preset;
  }
  const std::filesystem::path path = name_or_path;
  std::error_code error;  // a path that cannot be examined is read_json()'s to explain
  check(std::filesystem::exists(path, error) || error, "no hardware ", name_or_path, ": expected a preset (",
        preset_names(), ") or a file that snug probe wrote");
  return from_json(read_json(path), path.string());
}

void save_hardware(const Hardware& hardware, const std::filesystem::path& path) {
  validate(hardware, path.string());
  replace_file(path, to_json(hardware).dump(2) + "\n");
}

Json to_json(const Hardware& hardware) {
  Json json{
      {"name", hardware.name},
      {"is_gpu", hardware.is_gpu},
      {"is_estimate", hardware.is_estimate},
      {"memory_bytes", hardware.memory_bytes},
      {"outside_bytes", hardware.outside_bytes},
      {"host_bytes", hardware.host_bytes},
  };
  for (const Rate& rate : kRates) json[rate.key] = hardware.*rate.field;
  json["ranks_per_network"] = hardware.ranks_per_network;
  for (const Rate& link : kLinks) json[link.key] = hardware.*link.field;
  for (const Rate& rate : kMayBeZero) json[rate.key] = hardware.*rate.field;
  json["operators"] = Json::array();
  for (const auto& [work, seconds] : hardware.operators)
    json["operators"].push_back({{"name", work.name},
                                 {"flops", work.flops},
                                 {"bytes", work.bytes},
                                 {"low_precision", work.low_precision},
                                 {"is_attention", work.is_attention},
                                 {"seconds", seconds}});
  return json;
}

Hardware from_json(Json object, const std::string& where) {
  check_complete(object, where);
  const JsonReader json(std::move(object), where);
  Hardware hardware;
  hardware.name = json.required<std::string>("name");
  hardware.is_gpu = json.required<bool>("is_gpu");
  hardware.is_estimate = json.required<bool>("is_estimate");
  hardware.memory_bytes = read_bytes(json, "memory_bytes", where);
  hardware.outside_bytes = read_bytes(json, "outside_bytes", where);
  hardware.host_bytes = read_bytes(json, "host_bytes", where);
  for (const Rate& rate : kRates) hardware.*rate.field = json.required<double>(rate.key);
  hardware.ranks_per_network = json.required<std::int64_t>("ranks_per_network");
  for (const Rate& link : kLinks) hardware.*link.field = json.required<double>(link.key);
  for (const Rate& rate : kMayBeZero) hardware.*rate.field = json.required<double>(rate.key);
  const Json operators = json.required<Json>("operators");
  check(operators.is_array(), where, ": \"operators\" must be a list, got ", operators.dump());
  for (const Json& entry : operators)
    hardware.operators.push_back(operator_from_json(entry, where + ": operators"));
  json.refuse_unread();
  validate(hardware, where);
  return hardware;
}

void validate(const Hardware& hardware, const std::string& where) {
  check(!hardware.name.empty(), where, ": name must not be empty");
  check(hardware.memory_bytes > 0, where, ": memory_bytes must be at least 1, got 0");
  check(hardware.outside_bytes < hardware.memory_bytes, where, ": outside_bytes must be below memory_bytes ",
        hardware.memory_bytes, ", got ", hardware.outside_bytes);
  check(hardware.host_bytes > 0, where, ": host_bytes must be at least 1, got 0");
  for (const Rate& rate : kRates) check_positive(hardware.*rate.field, rate.key, where);
  check(hardware.ranks_per_network >= 1, where, ": ranks_per_network must be at least 1, got ",
        hardware.ranks_per_network);
  const bool has_link =
      std::ranges::any_of(kLinks, [&](const Rate& link) { return hardware.*link.field != 0; });
  for (const Rate& link : kLinks) {
    const auto check_link = hardware.is_gpu && has_link ? check_positive : check_not_negative;
    check_link(hardware.*link.field, link.key, where);
  }
  for (const Rate& rate : kMayBeZero) check_not_negative(hardware.*rate.field, rate.key, where);
  for (const auto& [work, seconds] : hardware.operators) {
    const std::string here = concat(where, ": operators: ", work.name);
    check_not_negative(work.flops, "flops", here);
    check_not_negative(work.bytes, "bytes", here);
    check_positive(seconds, "seconds", here);
  }
}

}  // namespace snug::plan
