#include "cli/command.h"

#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <string>

#include "cli/exit_status.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "snug/base/error.h"

namespace snug::cli {
namespace {

constexpr auto kVerbs = "estimate, plan, train, eval, convert, tune, verify, profile, report or probe";

void check_verb(const CLI::App& app, const std::string& first) {
  const auto named = app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == first; });
  check(first.starts_with("-") || !named.empty(), "unknown verb \"", first, "\": expected ", kVerbs);
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

void run(int argc, char** argv) {
  CLI::App app("Makes a training step fit the memory you have, and proves it.\n", "snug");
  app.set_version_flag("--version", "snug " SNUG_VERSION ", torch " TORCH_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.footer("'snug VERB --help' shows the options of a verb, and examples.");
  add_estimate(app);
  add_plan(app);
  add_train(app);
  add_eval(app);
  add_convert(app);
  add_tune(app);
  add_verify(app);
  add_profile(app);
  add_report(app);
  add_probe(app);
  for (CLI::App* verb : app.get_subcommands({})) verb->group("Verbs");

  if (argc > 1) check_verb(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
  } catch (const CLI::Success&) {
    print(app.help());
  } catch (const CLI::ParseError& error) {
    check(!app.get_subcommands().empty(), "expected a verb: ", kVerbs, "; 'snug --help' says what each does");
    refuse(app, error);
  }
}

}  // namespace

int run_command(int argc, char** argv) {
  // A file above the allowed size is then an error of write(), like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  return exit_status([&] { run(argc, argv); });
}

}  // namespace snug::cli
