// snug profile: a few steps recorded to a trace file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/error.h"
#include "snug/report/text.h"
#include "snug/train/progress.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug profile --model tiny --out tiny.trace
      Three steps; every allocation, free, operator and saved tensor goes to tiny.trace.
  snug profile --data book.txt --batch-size 16 --micro-batch 4 --out split.trace
      The same for a batch in four parts.
  snug report tiny.trace split.trace
      What the traces say, and what changed between them.)";

struct Flags {
  TrainingFlags training{.steps = 3};
  std::string out = "snug.trace";
  bool force = false;
  bool json = false;
};

void run(const Flags& flags) {
  const train::TrainConfig config = training_config(flags.training);
  std::error_code unreachable;  // then writing it will say why
  check(flags.force || !std::filesystem::exists(flags.out, unreachable), "--out ", flags.out,
        " exists already: choose another, or give --force to replace it");
  train::Progress progress({.steps = config.steps});
  const train::TrainResult result =
      train::train(config, {.trace = flags.out,
                            .traced_steps = config.steps,
                            .on_step = [&](const train::StepMetrics& metrics) { progress.show(metrics); },
                            .stop = &stop_on_signal()});
  progress.end();
  if (flags.json) {
    print_json(Json{{"trace", flags.out}, {"steps", result.steps}, {"measured", to_json(result.measured)}});
    return;
  }
  print(fmt::format("At the peak\n{}\n{}\nTrace: {} (snug report {} shows all of it)\n",
                    report::table(result.measured.peak), memory_lines(result.measured), flags.out,
                    flags.out));
}

}  // namespace

void add_profile(CLI::App& snug) {
  CLI::App& verb = *snug.add_subcommand("profile", "Record what a few steps do to memory, to a trace file");
  auto flags = std::make_shared<Flags>();
  add_training_flags(verb, flags->training);
  add_text(verb, "--out", "FILE", flags->out, "The trace; default snug.trace");
  verb.add_flag("--force", flags->force, "Replace a file that exists");
  add_json(verb, flags->json);
  verb.footer(kExamples);
  verb.callback([flags] { run(*flags); });
}

}  // namespace snug::cli
