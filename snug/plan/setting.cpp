#include "snug/plan/setting.h"

#include <fmt/format.h>

namespace snug::plan {

std::int64_t Setting::operator[](const LeverKind& kind) const {
  const auto found = levers.find(kind.name);
  return found == levers.end() ? kind.plain : found->second;
}

std::string text(const Setting& setting, std::string_view lever) {
  std::string text;
  for (const LeverKind& kind : kLevers) {
    if (setting[kind] == 0 || (!lever.empty() && lever != kind.name)) continue;
    text += text.empty() ? "" : ", ";
    text += fmt::format(fmt::runtime(kind.text), fmt::arg("value", setting[kind]),
                        fmt::arg("passes", setting.accumulation));
  }
  return text;
}

}  // namespace snug::plan
