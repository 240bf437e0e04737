// Is a planned step as long as the planner says? After one measured step, over budgets from 0.4 of the plain
// peak to all of it; and how long planning itself takes.
//
//   plan_time
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

namespace snug {
namespace {

using train::TrainConfig;

TrainConfig twelve_layers() {
  TrainConfig config;
  config.model_name = "12 layers, hidden 128";
  config.model = {.vocab_size = 512,
                  .hidden_size = 128,
                  .intermediate_size = 344,
                  .num_layers = 12,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .head_dim = 32,
                  .max_positions = 256};
  config.steps = 9;
  return config;
}

TrainConfig under_a_plan(TrainConfig config, const plan::Planner& planner, std::uint64_t budget) {
  train::take(planner.write_down(planner.decide(budget), identity_of(train::make_step(config))), config);
  return config;
}

void compare_times() {
  const TrainConfig config = twelve_layers();
  const plan::Hardware cpu = plan::preset("cpu");
  const Step step = train::make_step(config, {8});
  const auto by_preset = make_planner(step, {.hardware = cpu});
  const plan::MeasuredCosts costs =
      train::measure_costs(under_a_plan(config, *by_preset, by_preset->plain().peak_bytes), cpu);
  const auto planner = make_planner(step, {.hardware = cpu, .costs = &costs});
  fmt::print("budget      predicted   measured    error  split\n");
  double worst = 0;
  std::vector<std::pair<double, double>> times;  // predicted, measured
  for (const double share : {0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0}) {
    const auto budget = static_cast<std::uint64_t>(share * static_cast<double>(planner->plain().peak_bytes));
    const TrainConfig planned = under_a_plan(config, *planner, budget);
    const double predicted = planned.plan->predicted.step_seconds;
    const double measured = train::train(planned).measured.step_seconds;
    const double error = predicted / measured - 1;
    worst = std::max(worst, std::abs(error));
    times.emplace_back(predicted, measured);
    fmt::print("{:>9} {:>9.1f} ms {:>7.1f} ms {:>+7.1f} %  {} x {}\n", format_bytes(budget), 1e3 * predicted,
               1e3 * measured, 100 * error, planned.micro_batch, planned.accumulation());
  }
  int wrong = 0, pairs = 0;
  for (const auto& [predicted, measured] : times)
    for (const auto& [other_predicted, other_measured] : times) {
      if (predicted < 1.1 * other_predicted) continue;
      ++pairs;
      wrong += measured < other_measured;
    }
  fmt::print("worst error {:.1f} % (bar 15 %); order wrong in {} of {} pairs more than 10 % apart\n",
             100 * worst, wrong, pairs);
}

void time_planning() {
  TrainConfig config = twelve_layers();
  config.model.num_layers = 32;
  config.model.hidden_size = 4096;
  config.model.intermediate_size = 14336;
  config.model.num_heads = 32;
  config.model.num_kv_heads = 8;
  config.model.head_dim = 128;
  config.model.max_positions = config.seq_len = 4096;
  config.device = c10::kCUDA;
  config.precision = train::Precision::Bf16;
  std::vector<plan::Candidate> candidates;
  const plan::Hardware h200 = plan::preset("h200");
  double sketching = 0, modelling = 0;
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (const std::int64_t micro : {8, 4, 2, 1}) {
    const Step step = train::make_step(config, {micro});
    auto start = Clock::now();
    trace::Sketch sketch = sketch_step(step, step.settings.front());
    sketching += since(start);
    start = Clock::now();
    candidates.push_back(
        {.setting = step.settings.front(),
         .model = std::make_shared<const plan::StepModel>(
             std::move(sketch), 8.0 / static_cast<double>(micro),
             [&](const trace::Work& work) { return plan::seconds(work, h200); }, plan::links_of(h200))});
    modelling += since(start);
  }
  const auto start = Clock::now();
  const plan::Planner planner(std::move(candidates), {.outside_bytes = h200.outside_bytes});
  const double searching = since(start);
  double worst = 0;
  for (const plan::Offer& offer : planner.offers())
    worst = std::max(worst, offer.seconds / planner.bound_seconds(offer.peak_bytes) - 1);
  fmt::print(
      "planning 32 layers, 4 settings: {:.2f} s for choices, {:.2f} s for the search ({} plans), after "
      "{:.2f} "
      "s on Meta; "
      "at most {:.2f} % from the bound\n",
      modelling, searching, planner.offers().size(), sketching, 100 * worst);
}

}  // namespace
}  // namespace snug

int main() {
  snug::time_planning();
  std::fflush(stdout);  // the rest takes a while
  snug::compare_times();
}
