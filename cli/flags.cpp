#include "cli/flags.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/output.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/base/parse.h"
#include "snug/memory/process_memory.h"

namespace snug::cli {
namespace {

// As a double: below 2^53 it is the number itself, beyond that it is only compared with a limit.
std::optional<double> parse_whole(std::string_view text) {
  const auto real = parse_all<double>(text);
  return real && std::isfinite(*real) && *real == std::floor(*real) ? real : std::nullopt;
}

void parse_named(const std::string& name, const std::vector<std::string>& values,
                 const std::function<void(const std::string&)>& parse) {
  check(values.size() == 1, name, " was given ", values.size(), " times; once is enough");
  check(!values[0].empty() && !values[0].starts_with("--"), name, " needs a value, got \"", values[0], "\"");
  try {
    parse(values[0]);
  } catch (const Error& error) {
    const std::string message = error.what();
    throw Error(message.starts_with(name) ? message : name + ": " + message);
  }
}

void check_verb(const CLI::App& app, const std::string& first, const std::string& verbs) {
  const auto named = app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == first; });
  check(first.starts_with("-") || !named.empty(), "unknown verb \"", first, "\": expected ", verbs);
}

// Throws Error with CLI11's complaint in one line.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const auto flag = what.find(" was given a disallowed flag override"); flag != std::string::npos)
      fail("--", what.substr(0, flag), " takes no value");
    fail(what.substr(0, what.find(':')), " needs a value");
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    fail("unknown option or argument \"", app.remaining(true).front(), "\"; 'snug ",
         app.get_subcommands().front()->get_name(), " --help' lists what there is");
  }
  fail(what);
}

}  // namespace

void parse_command(int argc, char** argv, const std::string& verbs,
                   std::initializer_list<void (*)(CLI::App&)> add_verbs) {
  CLI::App app("Makes a training step fit the memory you have, and proves it.\n", "snug");
  app.set_version_flag("--version", "snug " SNUG_VERSION ", torch " TORCH_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.footer("'snug VERB --help' shows the options of a verb, and examples.");
  for (const auto add : add_verbs) add(app);
  for (CLI::App* verb : app.get_subcommands({})) verb->group("Verbs");

  if (argc > 1) check_verb(app, argv[1], verbs);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
  } catch (const CLI::Success&) {
    print(app.help());
  } catch (const CLI::ParseError& error) {
    check(!app.get_subcommands().empty(), "expected a verb: ", verbs, "; 'snug --help' says what each does");
    refuse(app, error);
  }
}

CLI::App& add_verb(CLI::App& snug, const std::string& name, const std::string& help,
                   const std::string& examples, std::function<void()> run) {
  CLI::App& verb = *snug.add_subcommand(name, help);
  verb.footer(examples);
  verb.callback(std::move(run));
  return verb;
}

void add_value(CLI::App& verb, const std::string& name, const std::string& placeholder,
               std::function<void(const std::string&)> parse, const std::string& help) {
  const auto read = [name, parse = std::move(parse)](const CLI::results_t& values) {
    parse_named(name, values, parse);
    return true;
  };
  verb.add_option(name, read, help)
      ->type_name(placeholder)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);  // so that a second value reaches `read`
}

std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t least,
                         std::int64_t most) {
  const auto real = parse_whole(text);
  check(real.has_value(), name, " must be a whole number, got \"", text, "\"");
  check(*real >= static_cast<double>(least), name, " must be at least ", least, ", got ", text);
  check(*real <= static_cast<double>(most), name, " must be at most ", most, ", got ", text);
  if (const auto whole = parse_all<std::int64_t>(text)) return *whole;
  return static_cast<std::int64_t>(*real);
}

double parse_number(const std::string& name, const std::string& text, double limit) {
  const auto value = parse_all<double>(text);
  check(value && std::isfinite(*value), name, " must be a number, got \"", text, "\"");
  check(*value >= 0, name, " must be at least 0, got ", text);
  check(*value < limit, name, " must be below ", limit, ", got ", text);
  return *value;
}

std::uint64_t parse_budget(const std::string& text) {
  const std::uint64_t bytes = parse_bytes(text);
  const bool has_unit = text.find_first_not_of("0123456789") != text.npos;
  check(has_unit || bytes >= 1_MiB, text, " is ", format_bytes(bytes), "; did you mean ", text, "GiB?");
  return bytes;
}

void add_text(CLI::App& verb, const std::string& name, const std::string& placeholder, std::string& target,
              const std::string& help) {
  add_value(
      verb, name, placeholder, [&target](const std::string& text) { target = text; }, help);
}

void add_argument(CLI::App& verb, const std::string& name, std::string& target, const std::string& help,
                  bool required) {
  verb.add_option(name, target, help)->required(required);
}

void add_flag(CLI::App& verb, const std::string& name, bool& target, const std::string& help) {
  verb.add_flag(name, target, help)->disable_flag_override();
}

void add_json(CLI::App& verb, bool& json) {
  add_flag(verb, "--json", json, "One JSON document on standard output, and nothing else there");
}

void add_device(CLI::App& verb, std::string& device) {
  add_text(verb, "--device", "auto|cpu|cuda[:i]", device, "Default auto: the first GPU, else the CPU");
}

std::int64_t cuda_devices() {
  return at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

c10::Device parse_device(const std::string& text, bool must_exist) {
  if (text == "cpu") return c10::kCPU;
  const std::int64_t devices = cuda_devices();
  if (text == "auto") return devices > 0 ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);

  const std::optional<std::int64_t> index = text == "cuda" ? 0
                                            : text.starts_with("cuda:")
                                                ? parse_all<std::int64_t>(text.substr(5))
                                                : std::nullopt;
  check(index && *index >= 0 && *index < 128, "--device must be auto, cpu, cuda or cuda:i, got \"", text,
        "\"");
  if (must_exist && devices == 0)
    fail("--device ", text, ": no GPU found: ", memory::why_no_cuda_device(), "; use --device cpu");
  check(!must_exist || *index < devices, "--device ", text, ": this machine has ", devices,
        devices == 1 ? " GPU" : " GPUs", ", counted from 0");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(*index)};
}

}  // namespace snug::cli
