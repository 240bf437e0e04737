// The names of the categories, in the order of the enum.
#include "snug/trace/category.h"

#include <algorithm>

namespace snug::trace {
namespace {

constexpr std::array<std::string_view, kCategories> kNames = {
    "parameters", "gradients", "optimizer", "inputs", "activations", "temporaries", "other"};

}  // namespace

std::string_view name(Category category) {
  return kNames[static_cast<std::size_t>(category)];
}

std::optional<Category> category_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Category>(found - kNames.begin());
}

}  // namespace snug::trace
