// snug plan: what it takes to fit a budget, before there is a run.
#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "cli/ranks.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/train/planning.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug plan --budget 150MiB
      The tiny preset in 150 MiB: what is done, what it saves and costs, and how far from the best possible.
  snug plan --model llama3-8b --batch-size 8 --seq-len 8192 --budget 140GiB --hardware h200 --out plan.json
      For a GPU that is not here; 'snug train --plan plan.json' runs it there.
  snug plan --model llama-1.3b --seq-len 4096 --max-slowdown 1.1 --hardware rtx4090
      The smallest budget that costs at most a tenth of the time.
  snug plan --model llama3-8b --batch-size 64 --seq-len 8192 --ranks 64 --hardware h100
      For 64 GPUs in machines of 8: what each holds, what they send one another, which ZeRO stage is fastest.
  snug plan --sweep
      Budget against time, from the leanest plan to the plain step.)";

struct Flags {
  TrainingFlags training;
  std::optional<std::uint64_t> budget;
  std::optional<double> max_slowdown;
  std::string hardware, out;
  bool force = false;
  bool sweep = false;
  bool measure = false;
  bool json = false;
};

std::uint64_t budget(const Flags& flags, const plan::Planner& planner, const plan::Hardware& hardware) {
  if (flags.budget) return *flags.budget;
  if (flags.max_slowdown) return planner.leanest_within(*flags.max_slowdown).peak_bytes;
  return hardware.is_gpu ? hardware.memory_bytes : planner.plain().peak_bytes;
}

void check_out(const Flags& flags) {
  std::error_code unreachable;  // then writing it will say why
  check(!flags.force || !flags.out.empty(), "--force has no use without --out");
  check(flags.force || flags.out.empty() || !std::filesystem::is_regular_file(flags.out, unreachable),
        "--out ", flags.out, " exists already: choose another, or give --force to replace it");
}

void run(const Flags& flags) {
  check_out(flags);
  check(!flags.budget || !flags.max_slowdown, "give --budget or --max-slowdown, not both");
  check(flags.max_slowdown.value_or(1) >= 1, "--max-slowdown must be at least 1, got ",
        flags.max_slowdown.value_or(1));
  TrainingFlags training = flags.training;
  const bool names_gpu = !flags.hardware.empty() && plan::load_hardware(flags.hardware).is_gpu;
  if (names_gpu) training.device = "cuda";
  if (!names_gpu && !flags.hardware.empty() && training.device == "auto") training.device = "cpu";
  train::TrainConfig config = training_config(training, /*device_must_exist=*/flags.measure && !names_gpu);
  ChosenHardware chosen = choose_hardware(flags.hardware, config.device);
  check(!flags.measure || !names_gpu, "--measure times steps on this machine, not on ", flags.hardware,
        ": leave out --hardware");
  if (config.ranks > 1 && config.device.is_cpu() && !std::getenv("OMP_NUM_THREADS"))
    at::set_num_threads(threads_of_rank(config.ranks));
  check(!flags.measure || config.ranks == 1, "--measure times steps of one rank: leave out --ranks");
  if (config.ranks > 1 && chosen.hardware.is_gpu) chosen.hardware = of_one_rank(chosen.hardware, config);
  const Step step = step_for(training, config, chosen.hardware);
  PlanOptions options{.host_budget_bytes = config.host_budget_bytes, .hardware = chosen.hardware};
  std::optional<plan::MeasuredCosts> costs;
  if (flags.measure) costs = measure_costs(training, config, std::nullopt, chosen);
  if (costs) options.costs = &*costs;
  auto planner = make_planner(step, options);
  options.budget_bytes = budget(flags, *planner, chosen.hardware);
  PlannedStep planned = plan_stages(training, options, config, planner);
  planner = planned.planner;
  const plan::Decision& decision = planned.decision;
  if (!flags.out.empty() && decision.fits) plan::save_plan(planned.plan, flags.out);
  const auto alternatives = decision.fits
                                ? std::vector<Alternative>()
                                : what_fits(training, config, options.budget_bytes, chosen.hardware);
  train::take(planned.plan, config);

  if (flags.json) {
    Json document =
        plan_document(config, planned, train::predict(largest_step(training, config)).peak, chosen);
    if (flags.sweep) document["sweep"] = sweep_document(*planner);
    if (!decision.fits) document["alternatives"] = to_json(alternatives);
    print_json(document);
  } else {
    if (flags.sweep) print(sweep_table(*planner) + "\n");
    if (decision.fits) print(ladder(largest_step(training, config), *planner, decision, chosen));
  }
  if (!decision.fits) throw AnswerIsNo(does_not_fit(training, config, planned, alternatives));
}

}  // namespace

void add_plan(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb =
      add_verb(snug, "plan", "Say how a step fits a budget, what that costs, and why; needs no GPU",
               kExamples, [flags] { run(*flags); });
  add_step_flags(verb, flags->training);
  add_max_tokens(verb, flags->training);
  add_rank_flags(verb, flags->training);
  add_ranks_per_machine(verb, flags->training);
  add_host_budget(verb, flags->training);
  add_choice(verb, "--budget", "SIZE", flags->budget, parse_budget,
             "The most memory to use: 12GiB, 800MiB; default: the GPU's, or the plain step's on the CPU");
  add_number(verb, "--max-slowdown", flags->max_slowdown,
             "Instead of a budget: the smallest with which the step takes at most X times as long");
  add_text(
      verb, "--hardware", "NAME|FILE", flags->hardware,
      "Plan for " + plan::preset_names() +
          " or a hardware.json; default: the GPU that is here or the CPU, as 'snug probe' last measured it");
  add_flag(verb, "--sweep", flags->sweep, "A table of budgets against time");
  add_flag(verb, "--measure", flags->measure, "Run three steps first and plan with the times they took");
  add_text(verb, "--out", "FILE", flags->out, "Write the plan here, for train --plan");
  add_flag(verb, "--force", flags->force, "Replace a file that exists");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
