#include "snug/train/planning.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <functional>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/operator_timer.h"
#include "snug/capture/sketch.h"
#include "snug/hooks/meta_target.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/plan/fitted.h"
#include "snug/train/step.h"
#include "snug/train/trainer.h"

namespace snug::train {

namespace {

// Key by key, so that the first difference can be named.
void check_same(const Json& planned, const Json& here, const std::string& within) {
  for (const auto& [key, value] : planned.items())
    check(here.contains(key), "the plan says for which \"", within, key,
          "\" it is, which is no property of a step");
  for (const auto& [key, value] : here.items()) {
    if (within.empty() && key == "model") continue;  // a name; what counts is the architecture
    check(planned.contains(key), "the plan does not say which step it is for: \"", within, key,
          "\" is missing");
    if (value.is_object() && planned[key].is_object()) {
      check_same(planned[key], value, within + key + ".");
      continue;
    }
    check(planned[key] == value, "the plan is for another step: ", within, key, " ", planned[key].dump(),
          ", here ", value.dump());
  }
}

// On the CPU, kernels in half precision take scratch on each thread when it comes to it: how much of it is
// there at once depends on the moment.
plan::Overhead overhead(const TrainConfig& config, const plan::Hardware& hardware) {
  plan::Overhead overhead = plan::overhead_of(hardware);
  if (config.device.is_cpu() && config.precision != Precision::Fp32 && at::get_num_threads() > 1)
    overhead.share = 0.015;
  return overhead;
}

std::vector<std::int64_t> divisors(std::int64_t batch) {
  std::vector<std::int64_t> found;
  for (std::int64_t micro = batch; micro >= 1; --micro)
    if (batch % micro == 0) found.push_back(micro);
  return found;
}

// As usual, and in four times as many pieces where that frees something and leaves products of a size that
// hardware likes.
std::vector<std::int64_t> head_chunks(const TrainConfig& config, std::int64_t micro_batch) {
  constexpr std::int64_t kFiner = 4, kFewestRows = 512;
  constexpr std::uint64_t kWorthIt = 16_MiB;
  const std::int64_t rows = micro_batch * config.seq_len, vocabulary = config.model.vocab_size;
  const std::int64_t usual = ops::usual_pieces(rows, vocabulary, dtype(config.precision));
  const std::uint64_t piece_bytes =
      static_cast<std::uint64_t>(rows / usual * vocabulary) * c10::elementSize(dtype(config.precision));
  if (piece_bytes < kWorthIt || rows / (usual * kFiner) < kFewestRows) return {0};
  return {0, usual * kFiner};
}

}  // namespace

trace::Sketch sketch_step(const TrainConfig& config, std::int64_t micro_batch, std::int64_t head_chunks) {
  const hooks::MetaTargetScope target(config.device.type());
  TrainConfig shape = config;
  shape.micro_batch = micro_batch;
  shape.head_chunks = head_chunks;
  return capture::sketch(
      [&](memory::Tracker& tracker) {
        TrainingSetup setup(shape, c10::kMeta, tracker);
        run_meta_step(setup, shape, tracker);
      },
      /*workspaces=*/config.device.is_cpu());
}

plan::Planner make_planner(const TrainConfig& config, const PlanningOptions& options) {
  const plan::MeasuredCosts costs = options.costs ? *options.costs : plan::MeasuredCosts(options.hardware);
  plan::Links links = plan::links_of(options.hardware);
  links.host_bytes = config.host_budget_bytes.value_or(links.host_bytes);
  std::vector<plan::Split> splits;
  for (const std::int64_t micro :
       options.micro_batches.empty() ? divisors(config.batch_size) : options.micro_batches) {
    const std::int64_t passes = config.batch_size / micro;
    for (const std::int64_t chunks : head_chunks(config, micro))
      splits.push_back(
          {.micro_batch = micro,
           .accumulation = passes,
           .head_chunks = chunks,
           .model = std::make_shared<const plan::StepModel>(
               sketch_step(config, micro, chunks), static_cast<double>(passes), std::cref(costs), links)});
  }
  return plan::Planner(std::move(splits), overhead(config, options.hardware));
}

plan::Decision decide(plan::Planner& planner, const TrainConfig& config, const plan::Hardware& hardware,
                      std::uint64_t budget_bytes) {
  if (!config.device.is_cuda()) return planner.decide(budget_bytes);
  return plan::decide_within(planner, budget_bytes, hardware.memory_bytes);
}

std::vector<plan::MeasuredOperator> time_operators(const TrainConfig& config, std::int64_t warm_up) {
  TrainConfig few = config;
  few.steps = warm_up + 1;
  capture::OperatorTimer timer(config.device);
  std::vector<plan::MeasuredOperator> measured;
  train(few, {.on_step = [&](const StepMetrics&) {
          measured.clear();
          for (auto& [work, seconds] : timer.take()) measured.push_back({std::move(work), seconds});
        }});
  return measured;
}

plan::MeasuredCosts measure_costs(const TrainConfig& config, const plan::Hardware& hardware) {
  plan::MeasuredCosts costs(hardware);
  for (const auto& [work, seconds] : time_operators(config)) costs.add(work, seconds);
  return costs;
}

Json about_step(const TrainConfig& config) {
  return {{"torch", TORCH_VERSION},
          {"device", config.device.is_cuda() ? "cuda" : "cpu"},
          {"threads", config.device.is_cuda() ? 0 : at::get_num_threads()},
          {"model", config.model_name},
          {"architecture", models::to_json(config.model)},
          {"batch_size", config.batch_size},
          {"seq_len", config.seq_len},
          {"precision", name(config.precision)},
          {"optimizer", name(config.optimizer.kind)},
          {"master", master(config) ? Json(name(*master(config))) : Json(nullptr)},
          {"momentum", config.optimizer.momentum},
          {"allow_quadratic", config.allow_quadratic}};
}

void take(plan::Plan plan, TrainConfig& config) {
  config.micro_batch = plan.micro_batch;
  config.head_chunks = plan.head_chunks;
  config.plan = std::move(plan);
}

void check_plan(const plan::Plan& plan, const TrainConfig& config) {
  check_same(plan.step, about_step(config), "");
  check(
      config.batch_size % plan.micro_batch == 0 && config.batch_size / plan.micro_batch == plan.accumulation,
      "the plan's micro_batch ", plan.micro_batch, " times its accumulation ", plan.accumulation,
      " is not --batch-size ", config.batch_size);
  const trace::Sketch sketch = sketch_step(config, plan.micro_batch, plan.head_chunks);
  for (const auto& call : sketch.calls) {
    const auto region = std::ranges::find(plan.regions, call.tape.region, &plan::RegionPlan::region);
    check(region != plan.regions.end(), "the plan is for another model: it has no region \"",
          call.tape.region, "\"");
    plan::check_matches(*region, call.tape);
  }
  for (const plan::RegionPlan& region : plan.regions)
    check(std::ranges::any_of(sketch.calls,
                              [&](const auto& call) { return call.tape.region == region.region; }),
          "the plan is for another model: this one has no region \"", region.region, "\"");
}

}  // namespace snug::train
