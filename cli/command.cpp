#include "cli/command.h"

#include <csignal>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/verbs.h"

namespace snug::cli {
namespace {

constexpr auto kVerbs = "estimate, plan, train, eval, convert, tune, verify, profile, report or probe";

}  // namespace

int run_command(int argc, char** argv) {
  // A file above the allowed size is then an error of write(), like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  return exit_status([&] {
    parse_command(argc, argv, kVerbs,
                  {add_estimate, add_plan, add_train, add_eval, add_convert, add_tune, add_verify,
                   add_profile, add_report, add_probe});
  });
}

}  // namespace snug::cli
