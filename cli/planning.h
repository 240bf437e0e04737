// What the verbs that plan have in common: options, the planner they ask, and what they say of its answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/alternatives.h"
#include "cli/training_flags.h"
#include "snug/plan/hardware.h"
#include "snug/plan/planner.h"
#include "snug/session/plan_step.h"
#include "snug/session/verify.h"
#include "snug/trace/ledger.h"

namespace snug::cli {

struct ChosenHardware {
  plan::Hardware hardware;
  std::string file;  // where it was read; empty for a preset
  std::string note;  // which of them and why, for people; may be empty

  std::string text() const;  // "h200 (an estimate)"
};

// By name or file if one is given, else what is here: as last probed, or its preset.
ChosenHardware choose_hardware(const std::string& given, c10::Device device);

// What each of so many ranks of a machine has of its host: memory, and cores to update parameters with.
void share_host(plan::Hardware& hardware, int ranks);
// Of a GPU that is one of several ranks, which are not here: what is left beside NCCL, and its part of the
// host.
plan::Hardware of_one_rank(plan::Hardware hardware, const train::TrainConfig& config);

// Where ranks may choose what they share out, config.zero_stage becomes that of the fastest plan that fits,
// the lowest of those that are about as fast; of the leanest plan if none fits. `planner`: of the first
// stage.
PlannedStep plan_stages(const TrainingFlags& flags, const PlanOptions& options, train::TrainConfig& config,
                        std::shared_ptr<plan::Planner> planner = nullptr);

// Runs three steps under the leanest plan and keeps what their operators took, which `chosen` then says.
// None: it does not fit within `budget_bytes`.
std::optional<plan::MeasuredCosts> measure_costs(const TrainingFlags& flags, const train::TrainConfig& config,
                                                 std::optional<std::uint64_t> budget_bytes,
                                                 ChosenHardware& chosen);

// Makes a plan for the budget and puts it into the configuration. Throws AnswerIsNo if nothing fits.
PlannedStep plan_for_budget(const TrainingFlags& flags, const PlanOptions& options,
                            train::TrainConfig& config);
// Puts a plan from a file into the configuration. Throws Error unless it is for this very step.
void take_plan(const TrainingFlags& flags, const std::string& path, train::TrainConfig& config);

// What is planned for: sequences as long as --max-tokens allows.
train::TrainConfig largest_step(const TrainingFlags& flags, const train::TrainConfig& config);
// Given by hand, the split stays as it is, and so does what the CPU steps.
Step step_for(const TrainingFlags& flags, const train::TrainConfig& config, const plan::Hardware& hardware);

// The ladder: the plain peak by category, each lever with what it saves and costs, what comes next.
std::string ladder(const train::TrainConfig& config, const plan::Planner& planner,
                   const plan::Decision& decision, const ChosenHardware& hardware);
// In two lines, for a run that is about to use it.
std::string in_short(const plan::Plan& plan);
// What does not fit, by how much, and what does.
std::string does_not_fit(const TrainingFlags& flags, const train::TrainConfig& config,
                         const PlannedStep& planned, const std::vector<Alternative>& alternatives);
std::string verified_text(const Verified& verified);
std::string sweep_table(const plan::Planner& planner);

// The fields that others rely on; `step` is the captured step under the plan.
Json plan_document(const train::TrainConfig& config, const PlannedStep& planned, const trace::Snapshot& step,
                   const ChosenHardware& hardware);
Json sweep_document(const plan::Planner& planner);

}  // namespace snug::cli
