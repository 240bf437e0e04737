// Widths are counted in UTF-8 characters, one column each.
#include "snug/report/columns.h"

#include <fmt/format.h>

#include <algorithm>

namespace snug::report {
namespace {

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char byte) { return !continues(byte); }));
}

// Where the character with this number begins.
std::size_t offset(std::string_view text, std::size_t character) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (!continues(text[at]) && character-- == 0) break;
  }
  return at;
}

}  // namespace

std::string align(const std::vector<Row>& rows, std::string_view alignment) {
  std::vector<std::size_t> widths(alignment.size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += alignment[i] == 'r' ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string fit(std::string_view text, std::size_t longest) {
  std::string kept(text);
  if (const std::size_t characters = width(text); characters > longest) {
    const std::size_t tail = (longest - 3) / 2;
    const std::size_t head = longest - 3 - tail;
    kept = fmt::format("{}...{}", text.substr(0, offset(text, head)),
                       text.substr(offset(text, characters - tail)));
  }
  std::ranges::replace_if(
      kept, [](unsigned char byte) { return byte < 0x20 || byte == 0x7F; }, '?');
  return kept;
}

std::string region_label(std::string_view name, std::size_t longest) {
  return name.empty() ? "(outside)" : fit(name, longest);
}

std::string plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string percent(double part, double whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100 * part / whole);
}

}  // namespace snug::report
