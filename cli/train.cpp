// snug train: the main job.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/planning.h"
#include "cli/race.h"
#include "cli/ranks.h"
#include "cli/run_text.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/host/store.h"
#include "snug/io/training_state.h"
#include "snug/plan/plan.h"
#include "snug/train/planning.h"
#include "snug/train/progress.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

namespace fs = std::filesystem;
using train::TrainConfig;
using train::TrainResult;

constexpr auto kExamples = R"(Examples:
  snug train
      A first run: the tiny preset on synthetic tokens, ten steps, into runs/tiny-1.
  snug train --data book.txt --steps 200 --lr 3e-3 --warmup 20 --schedule cosine
      Learn from plain text, its bytes as tokens.
  snug train --data book.txt --budget 150MiB --json > result.json
      In 150 MiB: the batch is split and values are recomputed as far as it takes, and the budget holds. Exit status 1
      and what fits instead if this does not.
  snug train --data book.txt --out-dir runs/book --steps 500 --save-every 100 --resume
      Go on where a run was stopped, or killed, within the budget that it had: the steps that follow are the same,
      bit for bit, as long as the flags are and the batch is split as before. Ctrl-C saves first; exit status 130.
  snug plan --budget 150MiB --out plan.json && snug train --plan plan.json
      The same in two steps; the plan may be read and edited in between.)";

constexpr std::int64_t kMostSeconds = 24 * 60 * 60;

struct Flags {
  TrainingFlags training;
  std::optional<std::uint64_t> budget;
  std::string plan, hardware, out_dir;
  bool verify = false;
  std::int64_t save_every = 0;
  std::optional<std::int64_t> keep_last;
  bool no_save = false;
  bool resume = false;
  bool no_graph = false;
  bool race = false, no_race = false;
  bool json = false;
  std::int64_t rank_timeout = 120;  // seconds
  zero::Backend backend = zero::Backend::Auto;
  // Not given, but known among ranks:
  int ranks_here = 1;  // on this machine
  std::optional<ChosenHardware> hardware_of_all;
};

// What a run of this model is called: a preset's name, a folder's, or that of the folder of a config.json.
std::string run_name(const std::string& model) {
  fs::path path = fs::path(model).lexically_normal();
  if (path.filename().empty() || path.filename() == "config.json") path = path.parent_path();
  const std::string name = (path.extension() == ".json" ? path.stem() : path.filename()).string();
  return name.empty() || name.starts_with(".") ? "model" : name;
}

// Rank 0 looks for a free one.
fs::path out_dir_of(const Flags& flags, const TrainConfig& config, zero::Group* group) {
  std::string folder = flags.out_dir;
  if (folder.empty() && config.rank == 0)
    folder = train::RunDirectory::first_free("runs", run_name(config.model_name)).string();
  if (!group) return folder;
  const std::string first = group->exchange(folder, "run directory").front();
  check(folder.empty() || folder == first, "ranks save together: --out-dir ", first, " on rank 0 and ",
        folder, " on rank ", config.rank);
  return first;
}

void warn_if_above_budget(const TrainConfig& config, std::uint64_t predicted) {
  if (!config.budget_bytes || predicted <= *config.budget_bytes) return;
  const std::string warning =
      fmt::format("snug: warning: predicted peak {} exceeds the budget {} by {}; this run will be stopped\n",
                  format_bytes(predicted), format_bytes(*config.budget_bytes),
                  format_bytes(predicted - *config.budget_bytes));
  std::fputs(warning.c_str(), stderr);
}

// What is not given a run that goes on has as before.
void keep_budgets(Flags& flags) {
  const train::RunBudgets kept = train::budgets_of_run(flags.out_dir);
  const bool by_hand = !chosen_by_hand(flags.training).empty() || !flags.plan.empty();
  if (!flags.budget && !by_hand) flags.budget = kept.device_bytes;
  if (!flags.training.host_budget) flags.training.host_budget = kept.host_bytes;
}

// The very plan of a run that goes on, so that the batch is split as before, unless something was given that
// asks for another, or the plan is not for this step: with another torch or another number of threads.
bool take_plan_of_run(const Flags& given, const Flags& flags, TrainConfig& config) {
  const fs::path path = fs::path(flags.out_dir) / "plan.json";
  const TrainingFlags& training = given.training;
  std::error_code missing;
  if (!flags.resume || training.host_budget || training.micro_batch || training.accumulation ||
      training.max_tokens || training.stepped_on_host || !flags.hardware.empty() ||
      !fs::is_regular_file(path, missing))
    return false;
  try {
    if (plan::load_plan(path).budget_bytes != flags.budget) return false;
    take_plan(flags.training, path.string(), config);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What the run does about memory, and what to say of it.
struct Decided {
  std::string text;
  std::optional<Race> race;
  bool depends_on_clock = false;  // which plan it is
};

// `flags`: those given and those kept.
Decided decide(const Flags& given, const Flags& flags, const fs::path& out_dir, TrainConfig& config) {
  const std::string by_hand = chosen_by_hand(flags.training);
  check(by_hand.empty() || (!flags.budget && flags.plan.empty()), by_hand,
        " chooses by hand what --budget and --plan decide: give one of them");
  check(!flags.budget || flags.plan.empty(), "a plan has its own budget: give --budget or --plan");
  check(flags.hardware.empty() || flags.budget, "--hardware has no use without --budget");
  check(!flags.training.max_tokens || flags.budget, "--max-tokens has no use without --budget");
  check(!flags.training.stepped_on_host || flags.plan.empty(),
        "--stepped-on-host chooses by hand what --plan decides: give one of them");
  check(!flags.training.stepped_on_host || flags.budget || config.has_states_on_host(),
        "--stepped-on-host has no use without states on the host: give --budget or --states-on-host");
  check(flags.training.update != optim::UpdateTime::BeforeForward || flags.budget || !flags.plan.empty() ||
            config.has_states_on_host(),
        "--update forward has no use without states on the host: give --budget or --states-on-host");
  if (!flags.plan.empty()) take_plan(flags.training, flags.plan, config);
  check(!flags.race || !flags.no_race, "--race and --no-race: give one of them");
  check(!flags.race || flags.budget, "--race has no use without --budget");
  check(!flags.race || !flags.resume, "--race has no use with --resume: a run that goes on keeps its plan");
  check(!flags.race || config.ranks == 1, "--race has no use with --ranks: each rank has a clock of its own");
  if (!flags.budget) return {};
  std::string text;
  if (!given.budget) text = fmt::format("budget  {}, as this run had it\n", format_bytes(*flags.budget));
  if (take_plan_of_run(given, flags, config)) return {text + "plan    as this run had it\n"};
  ChosenHardware chosen =
      flags.hardware_of_all ? *flags.hardware_of_all : choose_hardware(flags.hardware, config.device);
  const auto check_it = [&] { train::check_run(config, {.out_dir = out_dir, .resume = flags.resume}); };
  std::optional<plan::MeasuredCosts> costs;
  if (!flags.no_race && flags.hardware.empty() && is_worth_measuring(chosen.hardware, config)) {
    check_it();
    costs = measure_costs(flags.training, config, flags.budget, chosen);
  }
  const PlanOptions options{.budget_bytes = *flags.budget,
                            .host_budget_bytes = config.host_bytes(),
                            .hardware = chosen.hardware,
                            .costs = costs ? &*costs : nullptr};
  const PlannedStep planned = plan_for_budget(flags.training, options, config);
  std::optional<Race> race;
  if (!flags.resume && !flags.no_race)
    race = race_plans(flags.training, options, planned, flags.race, check_it, config);
  text += in_short(*config.plan) + fmt::format("Planned with the speed of {}\n", chosen.text());
  if (race) text += race->text();
  const bool depends_on_clock = costs || (race && race->plans.size() > 1);
  return {std::move(text), std::move(race), depends_on_clock};
}

// Before anything is written.
void verify_first(const TrainConfig& config, std::FILE* text_to) {
  check(config.plan || config.recompute != Recompute::None || config.offload,
        "--verify compares a plan with the plain step: give --budget, --plan, --recompute or --offload");
  const Verified verified = train::verify(config);
  if (!verified.equal()) throw AnswerIsNo(verified_text(verified));
  print("verified  " + verified_text(verified) + "\n", text_to);
}

void check_saving(const Flags& flags) {
  check(!flags.no_save || (flags.save_every == 0 && !flags.keep_last),
        "--no-save leaves nothing to --save-every and --keep-last: leave one of them out");
  check(!flags.resume || !flags.out_dir.empty(), "--resume goes on in --out-dir: name it");
}

// The last state is what a resume goes on from.
fs::path weights_of(const TrainConfig& config, const Flags& flags) {
  const auto steps = flags.resume ? io::saved_steps(flags.out_dir) : std::vector<std::int64_t>();
  return steps.empty() ? config.weights : io::state_folder(flags.out_dir, steps.back());
}

// Ranks of one machine share what it has free; all take what the one with least has.
std::uint64_t part_of_host(zero::Group& group, int ranks_here) {
  const std::uint64_t mine = host::default_budget_bytes() / static_cast<std::uint64_t>(ranks_here);
  std::uint64_t least = mine;
  for (const std::string& text : group.exchange(std::to_string(mine), "memory of the hosts"))
    least = std::min<std::uint64_t>(least, std::stoull(text));
  return least;
}

// What ranks plan with must be the same for all: of machines with fewer ranks than others the fewest, the
// least of their budgets, the speed of rank 0's machine, and the most that any of them needs to be connected.
void agree_on_plan(zero::Group& group, Flags& flags) {
  Json mine = {{"here", flags.ranks_here},
               {"budget", flags.budget.value_or(0)},
               {"device_bytes", group.device_bytes()}};
  if (group.rank() == 0 && flags.budget) {
    ChosenHardware chosen =
        choose_hardware(flags.hardware, parse_device(flags.training.device, /*must_exist=*/true));
    share_host(chosen.hardware, flags.ranks_here);
    mine["hardware"] = plan::to_json(chosen.hardware);
    mine["file"] = chosen.file;
    mine["note"] = chosen.note;
  }
  int fewest = flags.ranks_here;
  std::uint64_t most = 0;
  const std::vector<std::string> all = group.exchange(mine.dump(), "budgets");
  for (const std::string& text : all) {
    const Json one = Json::parse(text);
    fewest = std::min(fewest, one["here"].get<int>());
    most = std::max(most, one["device_bytes"].get<std::uint64_t>());
    const auto budget = one["budget"].get<std::uint64_t>();
    if (flags.budget && budget > 0) flags.budget = std::min(*flags.budget, budget);
  }
  if (group.size() > 1) flags.training.ranks_per_machine = fewest;
  const Json first = Json::parse(all.front());
  if (!flags.budget || !first.contains("hardware")) return;
  flags.hardware_of_all = {plan::from_json(first["hardware"], "hardware of rank 0"),
                           first["file"].get<std::string>(), first["note"].get<std::string>()};
  flags.hardware_of_all->hardware.outside_bytes += most;
}

// What was measured is said of the rank that needed most.
void take_largest_rank(zero::Group& group, Json& document) {
  const Json mine = {{"measured", document["measured"]}, {"within_budget", document["within_budget"]}};
  std::vector<std::uint64_t> peaks;
  for (const std::string& text : group.exchange(mine.dump(), "what was measured")) {
    const Json one = Json::parse(text);
    peaks.push_back(one["measured"]["peak_bytes"].get<std::uint64_t>());
    if (peaks.back() > document["measured"]["peak_bytes"].get<std::uint64_t>())
      document["measured"] = one["measured"];
    if (!one["within_budget"].get<bool>()) document["within_budget"] = false;
  }
  document["peak_bytes_of_ranks"] = peaks;
}

void run_here(const Flags& given, const std::shared_ptr<zero::Group>& group) {
  check_saving(given);
  Flags flags = given;
  if (flags.resume) keep_budgets(flags);
  if (group) agree_on_plan(*group, flags);
  TrainConfig config = training_config(flags.training);
  if (group) config.host_part_bytes = part_of_host(*group, flags.ranks_here);
  config.graph = !flags.no_graph;
  const fs::path out_dir = out_dir_of(flags, config, group.get());
  const Decided decided = decide(given, flags, out_dir, config);
  std::FILE* const text_to = flags.json && config.rank == 0 ? stderr : stdout;
  if (flags.verify) verify_first(config, text_to);
  train::Progress progress({.steps = config.steps, .budget_bytes = config.budget_bytes});
  const TrainResult result = train::train(
      config, {.group = group,
               .out_dir = out_dir,
               .trace = flags.resume || config.rank != 0 ? fs::path() : out_dir / "trace",
               .on_prediction =
                   [&](const Prediction& predicted) {
                     print(heading(config, weights_of(config, flags), out_dir, group.get()) + decided.text +
                               prediction(config, predicted.peak),
                           text_to);
                     if (config.rank == 0) warn_if_above_budget(config, predicted.budget_use());
                   },
               .on_step =
                   [&](const train::StepMetrics& metrics) {
                     if (config.rank == 0) progress.show(metrics);
                   },
               .on_trouble =
                   [&](const std::string& text) {
                     const std::string who = config.rank == 0 ? "" : fmt::format("rank {}: ", config.rank);
                     print(with_flags("snug: warning: " + who + text + "\n"), stderr);
                   },
               .save = !flags.no_save,
               .save_every = flags.save_every,
               .keep_last = static_cast<std::size_t>(flags.keep_last.value_or(2)),
               .resume = flags.resume,
               .stop = &stop_on_signal(config.rank == 0 ? "this step" : "")});
  progress.end();
  print(summary(config, result, out_dir), text_to);
  if (decided.depends_on_clock && !out_dir.empty())
    print(
        fmt::format("The same run again, bit for bit: --plan {} instead of --budget, --race, --max-tokens\n",
                    (out_dir / "plan.json").string()),
        text_to);
  Json whole = document(config, result, out_dir);
  if (decided.race) whole["race"] = decided.race->document();
  if (group) {
    take_largest_rank(*group, whole);
    whole["backend"] = group->carrier();
  }
  if (flags.json) print_json(whole);
  // Of ranks another one may have been asked to stop.
  if (result.interrupted) throw Stopped{stop_signal() > 0 ? stop_signal() : SIGTERM};
}

// Ranks of one machine that has several GPUs have one each.
std::string device_of(const zero::Place& place, const std::string& given) {
  const bool is_any = given == "auto" || given == "cuda";
  const std::int64_t gpus = cuda_devices();
  return is_any && gpus > 0 ? "cuda:" + std::to_string(place.local_rank % gpus) : given;
}

void run(const Flags& given) {
  const zero::JoinOptions joining{.backend = given.backend,
                                  .timeout = std::chrono::seconds(given.rank_timeout)};
  auto place = zero::place_from_environment();
  const std::int64_t ranks = given.training.ranks.value_or(1);
  if (!place && ranks > 1) return start_ranks(static_cast<int>(ranks), joining.timeout);
  if (!place && !given.training.zero_stage) {
    check(given.backend == zero::Backend::Auto,
          "--backend has no use for one that trains by itself: give --ranks or --zero-stage");
    return run_here(given, nullptr);
  }
  if (!place) place = zero::Place();
  Flags flags = given;
  flags.training.ranks = place->size;
  flags.training.rank = place->rank;
  flags.ranks_here = place->local_size;
  flags.training.device = device_of(*place, given.training.device);
  as_rank(*place, parse_device(flags.training.device, /*must_exist=*/true), joining, [&](const auto& group) {
    check(given.training.ranks.value_or(place->size) == place->size, "--ranks ", *given.training.ranks,
          " contradicts the environment, which says that there are ", place->size);
    run_here(flags, group);
  });
}

}  // namespace

void add_train(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "train", "Train a model under a memory budget, predicted against measured",
                            kExamples, [flags] { run(*flags); });
  add_training_flags(verb, flags->training);
  add_choice(verb, "--budget", "SIZE", flags->budget, parse_budget,
             "The most memory to use: 12GiB, 800MiB. snug plans the step to fit it; default: no limit, "
             "nothing recomputed");
  add_max_tokens(verb, flags->training);
  add_rank_flags(verb, flags->training);
  add_choice(
      verb, "--backend", "auto|nccl|gloo", flags->backend, zero::parse_backend,
      "What carries what ranks do together; default auto, nccl where each has a GPU of its own, else gloo");
  add_count(verb, "--rank-timeout", flags->rank_timeout,
            "Seconds within which a rank that is lost, stopped or failed ends all; default 120", 1,
            kMostSeconds);
  add_text(verb, "--plan", "FILE", flags->plan, "Run a plan that 'snug plan --out' wrote");
  add_text(verb, "--hardware", "NAME|FILE", flags->hardware,
           "Whose speed --budget plans with: " + plan::preset_names() +
               " or a hardware.json; default: this machine's, as 'snug probe' last measured it");
  add_flag(verb, "--verify", flags->verify,
           "First compare a step under the plan with the plain one, bit by bit");
  add_text(verb, "--out-dir", "PATH", flags->out_dir,
           "The run directory; default runs/MODEL-N, the first that is free");
  add_count(verb, "--save-every", flags->save_every,
            "Save the state every N steps, in out-dir/state/step-N; default: after the last step only", 1);
  add_count(verb, "--keep-last", flags->keep_last, "States to keep; default 2", 1);
  add_flag(
      verb, "--no-graph", flags->no_graph,
      "Launch every kernel of a step by itself, also where the host is slower in that than the GPU in "
      "running them. Default: such steps become one CUDA graph, unless something of them waits on the host");
  add_flag(
      verb, "--race", flags->race,
      "With --budget: run the best plans of several splits of the batch for some steps in turn, on weights "
      "of no meaning, and take the fastest. Default: in runs of which that is about a twentieth at most");
  add_flag(
      verb, "--no-race", flags->no_race,
      "With --budget: run nothing before the first step; the plan is the one that is predicted to be the "
      "fastest, with the speeds that are known");
  add_flag(verb, "--no-save", flags->no_save, "Save nothing: for measurements");
  add_flag(
      verb, "--resume", flags->resume,
      "Go on after the last state in --out-dir, with the budgets that the run had; --steps is the total");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
