#include "cli/planning.h"

#include "snug/train/planning.h"

namespace snug::cli {

plan::Hardware choose_hardware(const std::string& given, c10::Device device) {
  if (!given.empty()) return plan::load_hardware(given);
  return plan::preset(device.is_cuda() ? "h200" : "cpu");
}

// Given by hand, the split stays as it is.
plan::Planner planner_for(const TrainingFlags& flags, const train::TrainConfig& config,
                          const plan::Hardware& hardware) {
  train::PlanningOptions options{.hardware = hardware};
  if (flags.micro_batch || flags.accumulation) options.micro_batches = {config.micro_batch};
  return train::make_planner(config, options);
}

}  // namespace snug::cli
