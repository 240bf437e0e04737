// A named part of the forward, of any module: the unit in which memory is reported and planned.
//
//   x = snug::region("layers.3", [&](at::Tensor x) { return block->forward(x); }, x);
//   x = snug::region("layers.3", tape::Fates::cheap(), [&](at::Tensor x) { return block->forward(x); }, x);
//
// The first takes its fates from the tape::Recording around it, if there is one; the second brings its own.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "snug/hooks/region.h"
#include "snug/tape/recording.h"

namespace snug {

namespace tape {
// Each lambda in a program has a type of its own.
template <class Function>
std::uint64_t place_of() {
  return typeid(Function).hash_code();
}
}  // namespace tape

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
decltype(auto) region(std::string_view name, Function&& function, Inputs&&... inputs) {
  hooks::RegionScope scope(name);
  return std::forward<Function>(function)(std::forward<Inputs>(inputs)...);
}

template <class Function, class... Inputs>
requires std::invocable<Function, Inputs...>
decltype(auto) region(std::string_view name, tape::Fates fates, Function&& function, Inputs&&... inputs) {
  tape::Recording recording(std::move(fates), {.place = tape::place_of<Function>()});
  hooks::RegionScope scope(name);
  return std::forward<Function>(function)(std::forward<Inputs>(inputs)...);
}

}  // namespace snug
