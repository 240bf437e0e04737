// Hardware as JSON, each key named like its field, and what each may be.
#include "snug/plan/hardware.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "snug/base/error.h"

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
};
constexpr Rate kLinks[] = {
    {"to_host_rate", &Hardware::to_host_rate},
    {"to_device_rate", &Hardware::to_device_rate},
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

Json to_json(const Hardware& hardware) {
  Json json{
      {"name", hardware.name},
      {"is_gpu", hardware.is_gpu},
      {"is_estimate", hardware.is_estimate},
      {"memory_bytes", hardware.memory_bytes},
      {"outside_bytes", hardware.outside_bytes},
  };
  for (const Rate& rate : kRates) json[rate.key] = hardware.*rate.field;
  for (const Rate& link : kLinks) json[link.key] = hardware.*link.field;
  json["operation_seconds"] = hardware.operation_seconds;
  return json;
}

Hardware from_json(Json object, const std::string& where) {
  const JsonReader json(std::move(object), where);
  Hardware hardware;
  hardware.name = json.required<std::string>("name");
  hardware.is_gpu = json.required<bool>("is_gpu");
  hardware.is_estimate = json.required<bool>("is_estimate");
  hardware.memory_bytes = read_bytes(json, "memory_bytes", where);
  hardware.outside_bytes = read_bytes(json, "outside_bytes", where);
  for (const Rate& rate : kRates) hardware.*rate.field = json.required<double>(rate.key);
  for (const Rate& link : kLinks) hardware.*link.field = json.required<double>(link.key);
  hardware.operation_seconds = json.required<double>("operation_seconds");
  json.refuse_unread();
  validate(hardware, where);
  return hardware;
}

void validate(const Hardware& hardware, const std::string& where) {
  check(!hardware.name.empty(), where, ": name must not be empty");
  check(hardware.memory_bytes > 0, where, ": memory_bytes must be at least 1, got 0");
  check(hardware.outside_bytes < hardware.memory_bytes, where, ": outside_bytes must be below memory_bytes ",
        hardware.memory_bytes, ", got ", hardware.outside_bytes);
  for (const Rate& rate : kRates) check_positive(hardware.*rate.field, rate.key, where);
  for (const Rate& link : kLinks) {
    const auto check_link = hardware.is_gpu ? check_positive : check_not_negative;
    check_link(hardware.*link.field, link.key, where);
  }
  check_not_negative(hardware.operation_seconds, "operation_seconds", where);
}

}  // namespace snug::plan
