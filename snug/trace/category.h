// What a piece of memory is for. One enum, everywhere: ledger, traces, reports, JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "snug/base/export.h"

namespace snug::trace {

enum class Category : std::uint8_t {
  Parameter,
  Gradient,
  Optimizer,   // moments, master weights, step counts
  Input,       // tokens and targets of the batch
  Activation,  // saved by autograd for the backward
  Temporary,   // made by an operation and gone before the step ends
  Other,       // nobody claimed it
};
inline constexpr std::size_t kCategories = 7;
inline constexpr std::array<Category, kCategories> kAllCategories = {
    Category::Parameter,  Category::Gradient,  Category::Optimizer, Category::Input,
    Category::Activation, Category::Temporary, Category::Other};

// The name in JSON and tables: parameters, gradients, optimizer, inputs, activations, temporaries, other.
SNUG_API std::string_view name(Category category);
SNUG_API std::optional<Category> category_from_name(std::string_view name);

}  // namespace snug::trace
