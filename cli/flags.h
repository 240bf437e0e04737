// Options whose values are read strictly: whatever is wrong with one is an Error of one line that names it.
#pragma once

#include <c10/core/Device.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace snug::cli {

constexpr std::int64_t kMostCount = std::int64_t{1} << 62;           // exact as a double too
constexpr std::int64_t kMostSequences = 1'000'000'000;               // sizes of tensors stay below 2^63
constexpr double kLargestFloat = std::numeric_limits<float>::max();  // what kernels compute with

// `placeholder` stands for the value in --help. Given twice is an Error; so is what `parse` throws.
CLI::Option* add_value(CLI::App& verb, const std::string& name, const std::string& placeholder,
                       std::function<void(const std::string&)> parse, const std::string& help);

// A whole number, 1000 or 1e3.
std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t least,
                         std::int64_t most);
// Finite, at least 0 and below `limit`.
double parse_number(const std::string& name, const std::string& text, double limit);

// Target: the number's type or an optional of it.
template <class Target>
CLI::Option* add_count(CLI::App& verb, const std::string& name, Target& target, const std::string& help,
                       std::int64_t least = 1, std::int64_t most = kMostCount) {
  return add_value(
      verb, name, "N",
      [&target, name, least, most](const std::string& text) {
        target = parse_count(name, text, least, most);
      },
      help);
}

template <class Target>
CLI::Option* add_number(CLI::App& verb, const std::string& name, Target& target, const std::string& help,
                        double limit = kLargestFloat) {
  return add_value(
      verb, name, "X",
      [&target, name, limit](const std::string& text) { target = parse_number(name, text, limit); }, help);
}

template <class Target, class Parse>
CLI::Option* add_choice(CLI::App& verb, const std::string& name, const std::string& choices, Target& target,
                        Parse parse, const std::string& help) {
  return add_value(
      verb, name, choices, [&target, parse](const std::string& text) { target = parse(text); }, help);
}

// For --budget and --host-budget: fewer plain bytes than any step needs are a unit that was left out.
std::uint64_t parse_budget(const std::string& text);

CLI::Option* add_text(CLI::App& verb, const std::string& name, const std::string& placeholder,
                      std::string& target, const std::string& help);
void add_json(CLI::App& verb, bool& json);
void add_device(CLI::App& verb, std::string& device);

// auto, cpu, cuda or cuda:i. With `must_exist` a device that this machine or build lacks is an Error.
c10::Device parse_device(const std::string& text, bool must_exist);

}  // namespace snug::cli
