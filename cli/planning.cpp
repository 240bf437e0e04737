#include "cli/planning.h"

#include <algorithm>
#include <utility>

#include "cli/exit_status.h"
#include "cli/output.h"
#include "snug/base/error.h"
#include "snug/machine/hardware_of.h"
#include "snug/train/planning.h"

namespace snug::cli {

std::string ChosenHardware::text() const {
  return note.empty() ? hardware.name : concat(hardware.name, " (", note, ")");
}

ChosenHardware choose_hardware(const std::string& given, c10::Device device) {
  if (given.empty()) {
    machine::HardwareHere here = machine::hardware_here(device);
    return {std::move(here.hardware), here.file.string(), std::move(here.note)};
  }
  plan::Hardware hardware = plan::load_hardware(given);
  check(hardware.is_gpu == device.is_cuda(), "--hardware ", given, " is ",
        hardware.is_gpu ? "a GPU" : "no GPU", " and --device is ", device.str(), ": give one of them");
  const bool is_preset = std::ranges::find(plan::presets(), hardware) != plan::presets().end();
  std::string note = hardware.is_estimate ? "an estimate" : "";
  return {std::move(hardware), is_preset ? "" : given, std::move(note)};
}

void share_host(plan::Hardware& hardware, int ranks) {
  hardware.host_bytes = std::max<std::uint64_t>(1, hardware.host_bytes / static_cast<std::uint64_t>(ranks));
  hardware.adam_rate /= ranks;
}

plan::Hardware of_one_rank(plan::Hardware hardware, const train::TrainConfig& config) {
  hardware.outside_bytes += plan::kUsualNccl;
  share_host(hardware, std::min(config.ranks, config.all_ranks().per_machine));
  return hardware;
}

train::TrainConfig largest_step(const TrainingFlags& flags, const train::TrainConfig& config) {
  train::TrainConfig largest = config;
  largest.seq_len = flags.max_tokens.value_or(config.seq_len);
  check(largest.seq_len >= config.seq_len, "--max-tokens ", largest.seq_len, " is below --seq-len ",
        config.seq_len);
  check(largest.seq_len <= config.model.max_positions, "--max-tokens ", largest.seq_len, " is more than the ",
        config.model.max_positions, " positions of ", config.model_name);
  return largest;
}

Step step_for(const TrainingFlags& flags, const train::TrainConfig& config, const plan::Hardware& hardware) {
  std::vector<std::int64_t> micro_batches;
  if (flags.micro_batch || flags.accumulation) micro_batches = {config.micro_batch};
  Step step = train::make_step(largest_step(flags, config), micro_batches,
                               flags.stepped_on_host ? nullptr : &hardware);
  step.identity = train::make_step(config).identity;
  return step;
}

namespace {

// A higher stage sends as much or more, and holds less.
bool is_better(const plan::Decision& higher, const plan::Decision& lower) {
  constexpr double kWorthIt = 0.99;
  if (higher.fits != lower.fits) return higher.fits;
  return higher.fits ? higher.taken.seconds < kWorthIt * lower.taken.seconds
                     : higher.missing_bytes < lower.missing_bytes;
}

}  // namespace

PlannedStep plan_stages(const TrainingFlags& flags, const PlanOptions& options, train::TrainConfig& config,
                        std::shared_ptr<plan::Planner> planner) {
  constexpr int kLastStage = 3;
  const auto planned_at = [&](const train::TrainConfig& at) {
    return plan_step(step_for(flags, at, *options.hardware), options, std::exchange(planner, nullptr));
  };
  PlannedStep best = planned_at(config);
  if (config.ranks == 1 || flags.zero_stage) return best;
  train::TrainConfig higher = config;
  while (*higher.zero_stage < kLastStage) {
    if (best.decision.fits && best.decision.levers.empty()) break;  // memory is not what it lacks
    ++*higher.zero_stage;
    PlannedStep planned = planned_at(higher);
    if (!is_better(planned.decision, best.decision)) continue;
    best = std::move(planned);
    config.zero_stage = higher.zero_stage;
  }
  return best;
}

std::optional<plan::MeasuredCosts> measure_costs(const TrainingFlags& flags, const train::TrainConfig& config,
                                                 std::optional<std::uint64_t> budget_bytes,
                                                 ChosenHardware& chosen) {
  const Step step = step_for(flags, config, chosen.hardware);
  const auto planner =
      make_planner(step, {.host_budget_bytes = config.host_bytes(), .hardware = chosen.hardware});
  if (budget_bytes && !planner->decide(*budget_bytes).fits) return std::nullopt;
  train::TrainConfig lean = config;  // it fits wherever anything does
  train::take(planner->write_down(planner->decide(0), identity_of(step)), lean);
  lean.budget_bytes = budget_bytes;
  print("timing three steps, operator by operator\n", stderr);
  plan::MeasuredCosts costs = train::measure_costs(lean, chosen.hardware);
  chosen.hardware.is_estimate = false;
  chosen.note = "timed by three steps";
  return costs;
}

PlannedStep plan_for_budget(const TrainingFlags& flags, const PlanOptions& options,
                            train::TrainConfig& config) {
  PlannedStep planned = plan_stages(flags, options, config);
  if (!planned.decision.fits)
    throw AnswerIsNo(does_not_fit(flags, config, planned,
                                  what_fits(flags, config, options.budget_bytes, *options.hardware)));
  train::take(planned.plan, config);
  return planned;
}

void take_plan(const TrainingFlags& flags, const std::string& path, train::TrainConfig& config) {
  check(!flags.micro_batch && !flags.accumulation,
        "a plan says how the batch is split: leave out --micro-batch and --accumulation");
  plan::Plan plan = plan::load_plan(path);
  train::TrainConfig taken = config;  // nothing changes unless the plan is for it
  const auto stage = plan.step.find("zero_stage");
  if (config.ranks > 1 && !flags.zero_stage && stage != plan.step.end() && stage->is_number_integer())
    taken.zero_stage = std::clamp(stage->get<int>(), 0, 3);
  const auto ranks = plan.step.find("ranks");
  check(config.ranks > 1 || ranks == plan.step.end(), path, ": the plan is for ",
        ranks == plan.step.end() ? "" : ranks->dump(), " ranks: give --ranks");
  try {
    train::check_plan(plan, taken);
  } catch (const Error& error) {
    fail(path, ": ", error.what());
  }
  config = std::move(taken);
  train::take(std::move(plan), config);
}

}  // namespace snug::cli
