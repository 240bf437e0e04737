// snug verify: does a plan change the mathematics?
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/train/planning.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug verify --budget 150MiB
      A step of the tiny preset in 150 MiB against the plain one in the same micro-batches: every value, every
      gradient, bit by bit. And how far rounding takes both from the step in one piece.
  snug verify --plan plan.json --json
      The same for a plan from a file, for scripts. Exit status 1 if anything differs.)";

struct Flags {
  TrainingFlags training{.steps = 1};
  std::optional<std::uint64_t> budget;
  std::string plan;
  bool json = false;
};

void run(const Flags& flags) {
  train::TrainConfig config = training_config(flags.training);
  const bool by_hand = flags.training.recompute || flags.training.offload;
  const int ways = flags.budget.has_value() + !flags.plan.empty() + by_hand;
  check(
      ways == 1,
      "give one of --budget, --plan and --recompute (with or without --offload): what is to be compared with "
      "the plain step?");
  if (const std::string placed = placed_by_hand(flags.training); !placed.empty())
    fail(placed, " has no use here: gradients are compared, and nothing is updated");
  if (flags.budget)
    plan_for_budget(flags.training,
                    {.budget_bytes = *flags.budget,
                     .host_budget_bytes = config.host_bytes(),
                     .hardware = choose_hardware("", config.device).hardware},
                    config);
  if (!flags.plan.empty()) take_plan(flags.training, flags.plan, config);
  const Verified verified = train::verify(config);
  if (flags.json)
    print_json({{"equal", verified.equal()},
                {"values", verified.values},
                {"tensors", verified.tensors},
                {"largest_difference", verified.largest_difference},
                {"micro_batches", verified.micro_batches},
                {"unsplit_difference",
                 verified.unsplit_difference ? Json(*verified.unsplit_difference) : Json(nullptr)}});
  const std::string text = verified_text(verified);
  if (!verified.equal()) throw AnswerIsNo(text);
  if (!flags.json) print(text + "\n");
}

}  // namespace

void add_verify(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "verify", "Compare a step under a plan with the plain one, bit by bit",
                            kExamples, [flags] { run(*flags); });
  add_step_flags(verb, flags->training);
  add_data_flags(verb, flags->training);
  add_choice(verb, "--budget", "SIZE", flags->budget, parse_budget, "Verify the plan for this budget");
  add_text(verb, "--plan", "FILE", flags->plan, "Verify a plan that 'snug plan --out' wrote");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
