// snug profile: a few steps recorded to a trace file.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/recompute_text.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/error.h"
#include "snug/report/text.h"
#include "snug/train/progress.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

namespace fs = std::filesystem;

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

// The trace is written beside its place and moved there at the end, so that an older one is replaced by a
// whole one or not at all. A run that failed for want of memory has a whole trace too: it shows why.
class TraceBeside {
 public:
  explicit TraceBeside(fs::path place) : place_(std::move(place)), path_(place_.string() + ".part") {}
  ~TraceBeside() {
    std::error_code gone;  // when the run failed otherwise there is none
    if (!moved_) fs::rename(path_, place_, gone);
  }
  TraceBeside(const TraceBeside&) = delete;  // it owns the file
  TraceBeside& operator=(const TraceBeside&) = delete;

  const fs::path& path() const { return path_; }
  void move_to_place() {
    fs::rename(path_, place_);
    moved_ = true;
  }

 private:
  fs::path place_;
  fs::path path_;
  bool moved_ = false;
};

void run(const Flags& flags) {
  const train::TrainConfig config = training_config(flags.training);
  std::error_code unreachable;  // then writing it will say why
  check(flags.force || !fs::exists(flags.out, unreachable), "--out ", flags.out,
        " exists already: choose another, or give --force to replace it");
  check(!fs::is_directory(flags.out, unreachable), "--out ", flags.out, " is a folder: name a file");
  TraceBeside trace(flags.out);
  train::Progress progress({.steps = config.steps});
  const train::TrainResult result =
      train::train(config, {.trace = trace.path(),
                            .traced_steps = config.steps,
                            .tapes = true,
                            .on_step = [&](const train::StepMetrics& metrics) { progress.show(metrics); },
                            .stop = &stop_on_signal("this step")});
  trace.move_to_place();
  progress.end();
  if (flags.json) {
    print_json(Json{{"trace", flags.out},
                    {"steps", result.steps},
                    {"measured", to_json(result.measured)},
                    {"recompute", recompute_json(config, result)}});
  } else {
    print(fmt::format("At the peak\n{}\n{}{}\nTrace: {} (snug report {} shows all of it)\n",
                      report::table(result.measured.peak), memory_lines(result.measured),
                      recompute_text(config, result), flags.out, flags.out));
  }
  if (result.interrupted) throw Stopped{stop_signal()};
}

}  // namespace

void add_profile(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "profile", "Record what a few steps do to memory, to a trace file",
                            kExamples, [flags] { run(*flags); });
  add_training_flags(verb, flags->training);
  add_text(verb, "--out", "FILE", flags->out, "The trace; default snug.trace");
  add_flag(verb, "--force", flags->force, "Replace a file that exists");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
