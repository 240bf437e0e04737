// Reads a number that is the whole of a text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace snug {

// Nothing for an empty text, a sign "+", spaces, anything behind the number, or what the type cannot hold.
template <class Number>
std::optional<Number> parse_all(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace snug
