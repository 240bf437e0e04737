// Sizes are read digit by digit, not as a double: a plain number of bytes must come back exact.
#include "snug/base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "snug/base/error.h"
#include "snug/base/parse.h"

namespace snug {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"K", 1_KiB},
    {"KiB", 1_KiB},
    {"KB", 1'000},
    {"M", 1_MiB},
    {"MiB", 1_MiB},
    {"MB", 1'000'000},
    {"G", 1_GiB},
    {"GiB", 1_GiB},
    {"GB", 1'000'000'000},
    {"T", 1024_GiB},
    {"TiB", 1024_GiB},
    {"TB", 1'000'000'000'000},
};

std::optional<std::uint64_t> parse(std::string_view text) {
  const std::size_t unit_begin = std::min(text.find_first_not_of("0123456789."), text.size());
  const Unit* unit = std::ranges::find(kUnits, text.substr(unit_begin), &Unit::name);
  if (unit == std::end(kUnits)) return std::nullopt;

  const std::string_view number = text.substr(0, unit_begin);
  const std::size_t point = std::min(number.find('.'), number.size());
  const auto whole = parse_all<std::uint64_t>(number.substr(0, point));
  if (!whole) return std::nullopt;
  std::uint64_t part = 0;
  if (point < number.size()) {
    const auto fraction = parse_all<double>(number.substr(point));
    if (!fraction || unit->bytes == 1) return std::nullopt;
    part = std::llround(*fraction * static_cast<double>(unit->bytes));
  }

  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(*whole, unit->bytes, &bytes) || __builtin_add_overflow(bytes, part, &bytes)) {
    return std::nullopt;
  }
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return bytes;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  const auto bytes = parse(text);
  check(bytes.has_value(), '"', text,
        "\" is not a size: expected a number with GiB, MiB, KiB, GB, MB, KB or none for bytes, "
        "such as 12GiB or 800MiB");
  return *bytes;
}

std::string format_bytes(std::uint64_t bytes) {
  const auto in = [&](std::uint64_t unit) { return static_cast<double>(bytes) / static_cast<double>(unit); };
  if (bytes >= 1_GiB) return fmt::format("{:.2f} GiB", in(1_GiB));
  if (bytes >= 1_MiB) return fmt::format("{:.1f} MiB", in(1_MiB));
  if (bytes >= 1_KiB) return fmt::format("{:.1f} KiB", in(1_KiB));
  return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
}

}  // namespace snug
