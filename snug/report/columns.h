// Text in aligned columns, for the tables of reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug::report {

inline constexpr std::size_t kLineWidth = 100;
inline constexpr std::size_t kLabelWidth = 40;  // of a region or an operator
inline constexpr std::size_t kDeviceWidth = 20;

using Row = std::vector<std::string>;

// One line per row, cells two spaces apart; `alignment` has one letter per column, 'l' or 'r'. An empty row
// is an empty line, and rows may be shorter than the alignment.
std::string align(const std::vector<Row>& rows, std::string_view alignment);

// The text in at most `width` characters, its middle replaced by "..." when it is longer; control characters,
// which a terminal would obey, become '?'.
std::string fit(std::string_view text, std::size_t width);

// fit() of a region's name; the empty one is "(outside)".
std::string region_label(std::string_view name, std::size_t width);

// "1 step", "2 steps".
std::string plural(std::uint64_t count, std::string_view noun);

// "12.3 %" of the whole.
std::string percent(double part, double whole);

}  // namespace snug::report
