// snug tune: the largest micro-batch that fits.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug tune --batch-size 32 --budget 300MiB
      The most sequences per forward that 300 MiB hold; the batch stays 32, by accumulation.
  snug tune --model llama-1.3b --batch-size 64 --seq-len 4096 --budget 80GiB --recompute cheap
      The same with cheap values recomputed.)";

struct Flags {
  TrainingFlags training{.steps = 1};
  std::optional<std::uint64_t> budget;
  bool json = false;
};

void run(const Flags& flags) {
  check(flags.budget.has_value(), "snug tune needs --budget: how much memory is there?");
  check(!flags.training.micro_batch && !flags.training.accumulation,
        "snug tune finds the micro-batch: leave out --micro-batch and --accumulation");
  train::TrainConfig config = training_config(flags.training);
  const ChosenHardware chosen = choose_hardware("", config.device);
  const Tuned tuned = train::tune(
      config, *flags.budget,
      {.device_bytes = chosen.hardware.memory_bytes, .outside_bytes = chosen.hardware.outside_bytes});
  const std::uint64_t predicted = tuned.predicted.least_budget();
  if (!tuned.fits)
    throw AnswerIsNo(fmt::format(
        "not even one sequence per forward fits {}: it needs {}, {} more; 'snug plan' says what "
        "else would help",
        format_bytes(*flags.budget), format_bytes(predicted), format_bytes(predicted - *flags.budget)));
  config = train::at_setting(std::move(config), tuned.setting);
  config.budget_bytes = flags.budget;
  config.steps = 1;
  const train::TrainResult result = train::train(config);  // the proof
  const std::uint64_t measured = result.measured.budget_use;
  if (flags.json) {
    print_json({{"micro_batch", config.micro_batch},
                {"accumulation", config.accumulation()},
                {"predicted", {{"peak_bytes", predicted}}},
                {"measured", {{"peak_bytes", measured}}}});
    return;
  }
  print(fmt::format("--micro-batch {} x {} of --batch-size {}: predicted {}, measured {} of {}\n",
                    config.micro_batch, config.accumulation(), config.batch_size, format_bytes(predicted),
                    format_bytes(measured), format_bytes(*flags.budget)));
  if (chosen.hardware.is_gpu)
    print(fmt::format("Context and libraries: {} expected, by {}\n",
                      format_bytes(chosen.hardware.outside_bytes), chosen.text()));
}

}  // namespace

void add_tune(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb =
      add_verb(snug, "tune", "Find the largest micro-batch for a budget: predicted, then proven by one step",
               kExamples, [flags] { run(*flags); });
  add_step_flags(verb, flags->training);
  add_data_flags(verb, flags->training);
  add_choice(verb, "--budget", "SIZE", flags->budget, parse_budget, "The most memory to use: 12GiB, 800MiB");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
