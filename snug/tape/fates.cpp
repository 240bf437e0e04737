#include "snug/tape/fates.h"

#include <utility>

namespace snug::tape {

namespace {

constexpr std::string_view kExpensive[] = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::conv",
    "aten::_convolution",
    "aten::mkldnn_",
    "aten::cudnn_conv",
    "aten::_scaled_",
    "aten::_flash_",
    "aten::_efficient_",
    "aten::_cudnn_attention",
    "aten::_cudnn_rnn",
    "aten::_addmm_activation",
    "aten::linear",
    "snug::attention",
    "snug::linear_cross_entropy",
    "snug::project",
};

// "aten::add" names "aten::add" and "aten::add.Tensor", not "aten::addmm".
bool names(std::string_view rule, std::string_view operation) {
  return operation.starts_with(rule) && (operation.size() == rule.size() || operation[rule.size()] == '.');
}

Fates with(Fates::Function rest, std::function<bool(const ValueInfo&)> matches, Fate fate) {
  return Fates([rest = std::move(rest), matches = std::move(matches), fate](const ValueInfo& value) {
    return matches(value) ? fate : rest(value);
  });
}

}  // namespace

Fates Fates::keep() {
  return Fates([](const ValueInfo&) { return Fate::Keep; });
}

Fates Fates::recompute() {
  return Fates([](const ValueInfo&) { return Fate::Recompute; });
}

Fates Fates::offload() {
  return Fates([](const ValueInfo&) { return Fate::Offload; });
}

Fates Fates::cheap() {
  return Fates(
      [](const ValueInfo& value) { return is_expensive(value.operation) ? Fate::Keep : Fate::Recompute; });
}

Fates Fates::in_region(std::string name, Fate fate) && {
  return with(
      std::move(function_),
      [name = std::move(name)](const ValueInfo& value) {
        return name.ends_with('.') ? value.region.starts_with(name) : value.region == name;
      },
      fate);
}

Fates Fates::of_operation(std::string name, Fate fate) && {
  return with(
      std::move(function_),
      [name = std::move(name)](const ValueInfo& value) { return names(name, value.operation); }, fate);
}

Fates Fates::smaller_than(std::uint64_t bytes, Fate fate) && {
  return with(
      std::move(function_), [bytes](const ValueInfo& value) { return value.bytes < bytes; }, fate);
}

bool is_expensive(std::string_view operation) {
  for (const std::string_view beginning : kExpensive)
    if (operation.starts_with(beginning)) return true;
  return false;
}

}  // namespace snug::tape
