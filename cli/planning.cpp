#include "cli/planning.h"

#include <algorithm>
#include <utility>

#include "cli/exit_status.h"
#include "snug/base/error.h"
#include "snug/session/hardware_of.h"
#include "snug/train/planning.h"

namespace snug::cli {

std::string ChosenHardware::text() const {
  return note.empty() ? hardware.name : concat(hardware.name, " (", note, ")");
}

ChosenHardware choose_hardware(const std::string& given, c10::Device device) {
  if (given.empty()) {
    session::HardwareHere here = session::hardware_here(device);
    return {std::move(here.hardware), here.file.string(), std::move(here.note)};
  }
  plan::Hardware hardware = plan::load_hardware(given);
  check(hardware.is_gpu == device.is_cuda(), "--hardware ", given, " is ",
        hardware.is_gpu ? "a GPU" : "no GPU", " and --device is ", device.str(), ": give one of them");
  const bool is_preset = std::ranges::find(plan::presets(), hardware) != plan::presets().end();
  std::string note = hardware.is_estimate ? "an estimate" : "";
  return {std::move(hardware), is_preset ? "" : given, std::move(note)};
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

// Given by hand, the split stays as it is.
plan::Planner planner_for(const TrainingFlags& flags, const train::TrainConfig& config,
                          const plan::Hardware& hardware, const plan::MeasuredCosts* costs) {
  train::PlanningOptions options{.hardware = hardware, .costs = costs};
  if (flags.micro_batch || flags.accumulation) options.micro_batches = {config.micro_batch};
  return train::make_planner(largest_step(flags, config), options);
}

plan::Decision plan_for_budget(const TrainingFlags& flags, const plan::Hardware& hardware,
                               std::uint64_t budget_bytes, train::TrainConfig& config) {
  plan::Planner planner = planner_for(flags, config, hardware);
  plan::Decision decision = train::decide(planner, largest_step(flags, config), hardware, budget_bytes);
  if (!decision.fits) throw AnswerIsNo(does_not_fit(config, planner, decision));
  config.budget_bytes = budget_bytes;
  train::take(planner.write_down(decision, train::about_step(config)), config);
  return decision;
}

void take_plan(const TrainingFlags& flags, const std::string& path, train::TrainConfig& config) {
  check(!flags.micro_batch && !flags.accumulation,
        "a plan says how the batch is split: leave out --micro-batch and --accumulation");
  plan::Plan plan = plan::load_plan(path);
  try {
    train::check_plan(plan, config);
  } catch (const Error& error) {
    fail(path, ": ", error.what());
  }
  config.budget_bytes = plan.budget_bytes;
  train::take(std::move(plan), config);
}

}  // namespace snug::cli
