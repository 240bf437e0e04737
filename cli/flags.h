// Verbs and their options, read strictly: whatever is wrong with a value is an Error of one line that names
// it. CLI11 is in flags.cpp alone: a file that includes it takes three times as long to compile.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace snug::cli {

constexpr std::int64_t kMostCount = std::int64_t{1} << 62;           // exact as a double too
constexpr std::int64_t kMostSequences = 1'000'000'000;               // sizes of tensors stay below 2^63
constexpr double kLargestFloat = std::numeric_limits<float>::max();  // what kernels compute with

// Reads the command line and runs its verb. `verbs`: their names, as errors list them.
void parse_command(int argc, char** argv, const std::string& verbs,
                   std::initializer_list<void (*)(CLI::App&)> add_verbs);

// `examples` end its --help. `run` is called when the verb was given and all of its options were read.
CLI::App& add_verb(CLI::App& snug, const std::string& name, const std::string& help,
                   const std::string& examples, std::function<void()> run);

// `placeholder` stands for the value in --help. Given twice is an Error; so is what `parse` throws.
void add_value(CLI::App& verb, const std::string& name, const std::string& placeholder,
               std::function<void(const std::string&)> parse, const std::string& help);

// A whole number, 1000 or 1e3.
std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t least,
                         std::int64_t most);
// Finite, at least 0 and below `limit`.
double parse_number(const std::string& name, const std::string& text, double limit);

// Target: the number's type or an optional of it.
template <class Target>
void add_count(CLI::App& verb, const std::string& name, Target& target, const std::string& help,
               std::int64_t least = 1, std::int64_t most = kMostCount) {
  add_value(
      verb, name, "N",
      [&target, name, least, most](const std::string& text) {
        target = parse_count(name, text, least, most);
      },
      help);
}

template <class Target>
void add_number(CLI::App& verb, const std::string& name, Target& target, const std::string& help,
                double limit = kLargestFloat) {
  add_value(
      verb, name, "X",
      [&target, name, limit](const std::string& text) { target = parse_number(name, text, limit); }, help);
}

template <class Target, class Parse>
void add_choice(CLI::App& verb, const std::string& name, const std::string& choices, Target& target,
                Parse parse, const std::string& help) {
  add_value(
      verb, name, choices, [&target, parse](const std::string& text) { target = parse(text); }, help);
}

// For --budget and --host-budget: fewer plain bytes than any step needs are a unit that was left out.
std::uint64_t parse_budget(const std::string& text);

void add_text(CLI::App& verb, const std::string& name, const std::string& placeholder, std::string& target,
              const std::string& help);
void add_argument(CLI::App& verb, const std::string& name, std::string& target, const std::string& help,
                  bool required = true);
void add_flag(CLI::App& verb, const std::string& name, bool& target, const std::string& help);
void add_json(CLI::App& verb, bool& json);
void add_device(CLI::App& verb, std::string& device);

std::int64_t cuda_devices();

// auto, cpu, cuda or cuda:i. With `must_exist` a device that this machine or build lacks is an Error.
c10::Device parse_device(const std::string& text, bool must_exist);

}  // namespace snug::cli
